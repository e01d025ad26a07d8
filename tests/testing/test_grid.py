"""The grid covers what the kernels promise."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.arch import ARCHS
from attn_tune.kernels import get_kernel
from attn_tune.testing import CASES, LARGE_CASES, LONG_CASES, Case

FAMILIES = [case.family for case in CASES + LONG_CASES]


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in CASES + LONG_CASES + LARGE_CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("q_dtype", {"bf16", "fp16", "fp8_e4m3"}),
        ("kv_dtype", {"bf16", "fp16", "fp8_e4m3", "int8"}),
        ("kv_scales", {"none", "per_tensor", "per_token_head"}),
        ("kv_layout", {"paged", "shuffled"}),
        ("group_size", {1, 4, 5, 6, 8, 16}),
        ("head_size", {64, 80, 128, 256, 512}),
        ("page_size", {16, 32, 48, 64, 128, 544}),
        ("sliding_window", {0, 64, 128, 256}),
        *((flag, {False, True}) for flag in ("causal", "sinks", "softcap", "alibi", "qq_bias")),
    ],
)
def test_every_value_of_a_field_occurs(field: str, values: set[Any]) -> None:
    assert values <= {getattr(family, field) for family in FAMILIES}


@pytest.mark.parametrize("case", CASES + LONG_CASES + LARGE_CASES, ids=lambda case: case.name)
def test_every_case_is_supported_everywhere(case: Case) -> None:
    for arch in ARCHS.values():
        for route in ("paged_2d", "paged_3d"):
            assert get_kernel(route).supports(case.family, arch) is None


def test_a_case_overrides_the_configuration_that_is_tried() -> None:
    case = next(case for case in CASES if case.config.get("QUERY_TERMS") == 2)
    assert case.complete({"BLOCK_M": 16, "QUERY_TERMS": 0})["QUERY_TERMS"] == 2
    wide = next(case for case in CASES if case.family.group_size == 24)
    assert wide.complete({"BLOCK_M": 16})["BLOCK_M"] == 32


def test_large_cases_have_caches_past_32_bit_offsets() -> None:
    for case in LARGE_CASES:
        inputs = case.inputs("meta")
        assert min(inputs.k.nbytes, inputs.v.nbytes) > 2 << 30
    assert sum(case.inputs("meta").k.numel() > 2**31 for case in LARGE_CASES) >= 3
