"""Random inputs hold the traps that they promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_tune.kernels.inputs import AttentionInputs
from attn_tune.kernels.random_inputs import random_inputs
from attn_tune.problem import AttentionFamily, AttentionProblem

KV_LENS = [40, 3, 70]


def batch(**fields: Any) -> AttentionInputs:
    family = AttentionFamily(**{"num_query_heads": 4, "num_kv_heads": 2, "head_size": 32} | fields)
    return random_inputs(AttentionProblem(family, 3, 4, 70), "cpu", query_lens=[1, 2, 4], kv_lens=KV_LENS, num_pages=12)


def slots(inputs: AttentionInputs, cache: torch.Tensor) -> torch.Tensor:
    """A cache as [page, slot, ...]."""
    if not inputs.shuffled:
        return cache
    if cache is inputs.k:
        return cache.permute(0, 3, 1, 2, 4)
    pages, heads, blocks, size, x = cache.shape
    return cache.permute(0, 2, 4, 1, 3).reshape(pages, blocks * x, heads, size)


@pytest.mark.parametrize("kv_layout", ["paged", "shuffled"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
def test_exactly_the_unused_slots_hold_nan(kv_dtype: str, kv_layout: str) -> None:
    inputs = batch(kv_dtype=kv_dtype, kv_layout=kv_layout)
    used = torch.zeros(12, 16, dtype=torch.bool)
    for seq, kv_len in enumerate(KV_LENS):
        for key in range(kv_len):
            used[inputs.block_table[seq, key // 16], key % 16] = True
    for cache in (inputs.k, inputs.v):
        nan = slots(inputs, cache.float() if cache is not inputs.k else cache).float().isnan().flatten(2)
        assert torch.equal(nan.all(2), ~used)
        assert torch.equal(nan.any(2), ~used)


def test_scales_of_unused_slots_are_nan_and_others_differ_widely() -> None:
    inputs = batch(kv_dtype="int8", kv_scales="per_token_head")
    assert inputs.k_scale is not None
    present = inputs.k_scale[~inputs.k_scale.isnan()]
    assert present.numel() == sum(KV_LENS) * 2
    assert 10 < present.max() / present.min() < 21


def test_pages_belong_to_one_sequence_and_the_rest_of_the_table_is_out_of_range() -> None:
    table = batch().block_table
    counts = [-(-kv_len // 16) for kv_len in KV_LENS]
    pages = torch.cat([row[:count] for row, count in zip(table, counts, strict=True)]).tolist()
    assert len(set(pages)) == len(pages)
    assert pages != sorted(pages)
    assert all((row[count:] >= 12).all() for row, count in zip(table, counts, strict=True))


def test_lengths_become_offsets_and_the_output_starts_as_nan() -> None:
    inputs = batch()
    assert inputs.cu_seqlens_q.tolist() == [0, 1, 3, 7]
    assert inputs.seqused_k.tolist() == KV_LENS
    assert inputs.q.shape[0] == 7
    assert torch.isnan(inputs.out).all()


def test_one_seed_gives_one_batch() -> None:
    assert torch.equal(batch().q, batch().q)
    assert torch.equal(batch().block_table, batch().block_table)


def test_lengths_must_be_given_for_every_sequence() -> None:
    problem = AttentionProblem(AttentionFamily(4, 2, 32), 3, 4, 70)
    with pytest.raises(ValueError, match="3 entries"):
        random_inputs(problem, "cpu", query_lens=[1, 2])
