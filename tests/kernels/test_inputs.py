"""The tensors of a call and the family that they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.kernels.inputs import allocate_workspace, empty_inputs, meta_inputs
from attn_tune.problem import AttentionFamily, AttentionProblem

FAMILIES: list[dict[str, Any]] = [
    {},
    {"page_size": 48, "value_head_size": 80, "sliding_window": 100},
    {"q_dtype": "fp16", "kv_dtype": "fp16", "softcap": True, "sinks": True},
    {"kv_dtype": "fp8"},
    {"q_dtype": "fp8", "kv_dtype": "fp8", "kv_scales": "per_token_head"},
    {"kv_dtype": "int8", "kv_layout": "shuffled", "kv_scales": "per_token_head", "value_head_size": 48},
    {"kv_layout": "shuffled", "alibi": True, "qq_bias": True},
    {"causal": False},
]


@pytest.mark.parametrize("fields", FAMILIES, ids=lambda fields: ",".join(fields) or "default")
def test_a_problem_is_read_back_from_its_tensors(fields: dict[str, Any]) -> None:
    problem = AttentionProblem(AttentionFamily(8, 2, 64, **fields), 3, 5, 130, 11)
    assert empty_inputs(problem, "cpu").problem == problem
    assert meta_inputs(problem).problem == problem


def test_a_cache_for_compiling_is_too_large_for_32_bit_offsets() -> None:
    for kv_dtype in ("bf16", "fp8"):
        inputs = meta_inputs(AttentionProblem(AttentionFamily(8, 1, 64, kv_dtype=kv_dtype), 1, 1, 100))
        assert inputs.k.nbytes >= 4 << 30
        assert inputs.v.nbytes >= 4 << 30


def test_every_sequence_has_room_for_its_keys() -> None:
    inputs = empty_inputs(AttentionProblem(AttentionFamily(8, 1, 64, page_size=48), 3, 1, 100), "cpu")
    assert inputs.block_table.shape == (3, 3)
    assert inputs.k.shape[0] == 9


def test_a_workspace_has_a_partial_for_each_row_and_segment() -> None:
    workspace = allocate_workspace(5, 8, 16, 64, "cpu")
    assert workspace.partial.numel() == 5 * 8 * 16 * 64
    assert workspace.partial_max.numel() == workspace.partial_sum.numel() == 5 * 8 * 16
