"""Plans of launches, made from tensors without memory."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.kernels import Launch, get_kernel
from attn_tune.kernels.inputs import meta_inputs
from attn_tune.kernels.launch import kernel_function
from attn_tune.problem import AttentionFamily, AttentionProblem

CONFIG = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 4, "num_stages": 2}


def plan(route: str, config: dict[str, int] | None = None, **fields: Any) -> list[Launch]:
    family = AttentionFamily(**{"num_query_heads": 8, "num_kv_heads": 2, "head_size": 64} | fields)
    return get_kernel(route).plan(meta_inputs(AttentionProblem(family, 3, 4, 100)), CONFIG | (config or {}))


def test_a_split_is_followed_by_its_reduce() -> None:
    attention, reduce = plan("paged_3d", value_head_size=80)
    assert attention.grid == (2 * 3, 3, 1)
    assert reduce.grid == (8 * 12, 1, 1)
    assert reduce.grid[1] * reduce.constants["BLOCK_D"] == 128
    (whole,) = plan("paged_2d")
    assert whole.grid == (2 * 3, 1, 1)


@pytest.mark.parametrize("route", ["paged_2d", "paged_3d"])
@pytest.mark.parametrize("fields", [{}, {"kv_dtype": "fp8", "kv_scales": "per_token_head", "sinks": True}])
def test_a_launch_binds_the_parameters_of_its_kernel_in_their_order(route: str, fields: dict[str, Any]) -> None:
    for launch in plan(route, **fields):
        names = kernel_function(launch.kernel).arg_names
        assert [*launch.arguments, *launch.constants] == names


def test_compiler_options_are_those_of_the_config() -> None:
    attention, _ = plan("paged_3d", {"num_warps": 8, "waves_per_eu": 2, "KEYS_FIRST": 1})
    assert attention.options == {"num_warps": 8, "num_stages": 2, "waves_per_eu": 2, "enable_fp_fusion": True}
    assert attention.constants["KEYS_FIRST"] is True


def test_an_overlapped_reduce_is_launched_early_and_waits() -> None:
    attention, reduce = plan("paged_3d", {"OVERLAP_REDUCE": 1})
    assert attention.constants["OVERLAP_REDUCE"] is True
    assert reduce.constants["OVERLAP_REDUCE"] is True
    assert reduce.options["launch_pdl"] == 1
    assert all(not launch.constants["OVERLAP_REDUCE"] for launch in plan("paged_3d"))


def test_the_number_of_segments_is_no_constant() -> None:
    """One compilation serves every split."""
    few, many = plan("paged_3d", {"NUM_SEGMENTS": 4})[0], plan("paged_3d", {"NUM_SEGMENTS": 100})[0]
    assert few.constants == many.constants
    assert (few.arguments["num_segments"], many.arguments["num_segments"]) == (4, 100)
