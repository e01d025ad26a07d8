from __future__ import annotations

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.search.grid import MAX_TOKENS, representative_sizes, size_grid

FAMILIES = [AttentionFamily(4, 1, 64), AttentionFamily(32, 4, 512, sliding_window=1024)]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_size_is_one_that_a_server_can_see(family: AttentionFamily) -> None:
    grid = size_grid(family)
    assert len(set(grid)) == len(grid)
    for problem in grid:
        assert problem.family == family
        assert problem.max_seqlen_q <= problem.max_seqlen_k
        assert problem.num_tokens == problem.num_seqs * problem.max_seqlen_q <= MAX_TOKENS


def test_the_grid_reaches_from_decode_at_batch_1_to_large_batches_long_contexts_and_prefill() -> None:
    sizes = {problem.sizes for problem in size_grid(FAMILIES[0])}
    assert {(1, 1, 256), (256, 1, 262144), (64, 4, 65536), (64, 512, 1024), (8, 4096, 4096)} <= sizes
    assert (16, 4096, 4096) not in sizes  # more tokens than one step has
    assert (1, 512, 256) not in sizes


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_representative_sizes_are_few_and_inside_the_grid(family: AttentionFamily) -> None:
    grid, few = size_grid(family), representative_sizes(family)
    assert len(set(few)) == len(few) < len(grid) / 20
    for axis in range(3):
        known = [problem.sizes[axis] for problem in grid]
        assert all(min(known) <= problem.sizes[axis] <= max(known) for problem in few)
    assert all(problem.num_tokens <= MAX_TOKENS for problem in few)
    assert {problem.max_seqlen_q > 1 for problem in few} == {True, False}
