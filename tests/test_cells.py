"""The benchmark cells."""

from __future__ import annotations

from collections import Counter

import pytest

from attn_tune.cells import FAMILIES, Cell, benchmark_cells
from attn_tune.models import all_families
from attn_tune.problem import AttentionFamily, AttentionProblem

CELLS = {cell.name: cell for cell in benchmark_cells()}


def test_families_are_deployments_of_models() -> None:
    assert set(FAMILIES.values()) <= set(all_families())


def test_names_are_unique_and_the_order_is_fixed() -> None:
    names = [cell.name for cell in benchmark_cells()]
    assert len(set(names)) == len(names)
    assert names == list(CELLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_every_kind_of_cell(family: str) -> None:
    kinds = Counter(cell.name.split("/")[1] for cell in benchmark_cells(float("inf")) if cell.name.startswith(family))
    assert kinds == {"decode": 16, "verify": 36, "prefill": 3, "mixed": 1, "skewed": 1}


def test_caches_over_the_limit_are_dropped() -> None:
    dropped = {cell.name for cell in benchmark_cells(float("inf"))} - set(CELLS)
    # 128 * 131072 tokens of 4 KV heads * (512 + 512) * 2 bytes are 137 GB.
    assert dropped == {"gemma-4-31b-full/decode/128x1@131072"}
    assert all(cell.kv_cache_bytes <= 1e9 for cell in benchmark_cells(1e9))
    assert len(benchmark_cells(1e9)) < len(CELLS)


def test_uniform_cell() -> None:
    cell = CELLS["qwen3.5-397b-tp2/verify/20x4@70000"]
    assert cell.problem == AttentionProblem(AttentionFamily(16, 1, 256, kv_dtype="fp8"), 20, 4, 70000)
    assert (cell.query_lens, cell.kv_lens) == (None, None)


def test_mixed_cell_has_one_prefill_among_decodes() -> None:
    cell = CELLS["llama-3-8b-tp1/mixed/31x1@8192+1x2048@2048"]
    assert cell.query_lens == (1,) * 31 + (2048,)
    assert cell.kv_lens == (8192,) * 31 + (2048,)
    assert cell.problem.sizes == (32, 2048, 8192)
    assert cell.problem.num_tokens == 31 + 2048


def test_skewed_cell_has_one_long_sequence() -> None:
    cell = CELLS["llama-3-8b-tp1/skewed/1x1@131072+31x1@1024"]
    assert cell.problem.sizes == (32, 1, 131072)
    assert cell.kv_lens == (131072,) + (1024,) * 31


def test_cache_bytes_count_whole_pages_of_each_sequence() -> None:
    family = AttentionFamily(4, 2, 64, page_size=16)  # 2 KV heads * 128 elements * 2 bytes = 512 bytes a token
    assert Cell("a", AttentionProblem(family, 3, 1, 17)).kv_cache_bytes == 3 * 32 * 512
    assert Cell("b", AttentionProblem(family, 2, 1, 33), (1, 1), (33, 1)).kv_cache_bytes == (48 + 16) * 512
