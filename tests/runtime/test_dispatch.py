from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import engine_calls as calls
import pytest
import torch

from attn_tune.kernels.inputs import Workspace, meta_inputs
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.runtime.arguments import visible_window
from attn_tune.runtime.dispatch import unified_attention
from attn_tune.runtime.workspace import allocate_workspace_for

Interpret = Callable[..., Any]
ROUTES = ("paged_2d", "paged_3d")
BF16, FP8 = 5e-3, 1e-2


@pytest.mark.parametrize("route", [None, *ROUTES])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"q_dtype": "fp16", "kv_dtype": "fp16"},
        {"kv_dtype": "fp8_e4m3"},
        {"kv_dtype": "int8", "kv_scales": "per_token_head"},
        {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
        {"sliding_window": 24},
        {"softcap": True},
        {"sinks": True},
        {"alibi": True},
        {"qq_bias": True},
        {"causal": False},
        {"kv_layout": "shuffled"},
        {"value_head_size": 48},
    ],
    ids=str,
)
def test_features(interpret: Interpret, fields: dict[str, Any], route: str | None) -> None:
    tolerance = FP8 if "8" in fields.get("kv_dtype", "") else BF16
    assert interpret(calls.family_error, fields, {"route": route}) < tolerance


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("style", ["page_head_slot", "page_slot_head", "k_scale_cache"])
def test_scales_per_token_in_either_order(interpret: Interpret, style: str, route: str) -> None:
    assert interpret(calls.token_scale_error, style, route) < FP8


def test_an_expanded_scale_is_one_scale(interpret: Interpret) -> None:
    assert interpret(calls.expanded_scale_error) < FP8


def test_scales_of_a_16_bit_cache_are_ignored(interpret: Interpret) -> None:
    assert interpret(calls.unused_scale_error) < BF16


def test_the_order_of_arguments_is_that_of_the_engines(interpret: Interpret) -> None:
    assert interpret(calls.positional_error) < FP8


@pytest.mark.parametrize("route", ROUTES)
def test_fp8_output(interpret: Interpret, route: str) -> None:
    assert interpret(calls.fp8_output_error, route) < 4e-2  # the rounding of e4m3


@pytest.mark.parametrize("route", ROUTES)
def test_strided_output(interpret: Interpret, route: str) -> None:
    error, rest_untouched = interpret(calls.strided_output_error, route)
    assert error < BF16
    assert rest_untouched


@pytest.mark.parametrize("config", [{"BLOCK_M": 32}, {"TILE_SIZE": 16, "NUM_SEGMENTS": 5}, calls.SPLIT], ids=str)
@pytest.mark.parametrize("route", ROUTES)
def test_a_config_overrides_the_tables_entries(interpret: Interpret, config: dict[str, int], route: str) -> None:
    assert interpret(calls.family_error, {}, {"route": route, "config": config}) < BF16


@pytest.mark.parametrize("given_workspace", [False, True])
def test_partials_of_a_split_call(interpret: Interpret, given_workspace: bool) -> None:
    error, out_untouched = interpret(calls.partials_error, given_workspace)
    assert error < BF16
    assert out_untouched


def test_an_unsplit_call_has_no_partials(interpret: Interpret) -> None:
    assert interpret(calls.unsplit_partials_error) < BF16


def test_a_workspace_serves_many_calls(interpret: Interpret) -> None:
    assert max(interpret(calls.workspace_errors)) < BF16


def test_padding_is_left_alone(interpret: Interpret) -> None:
    assert interpret(calls.padded_error) < BF16


def test_torch_compile_makes_one_graph(interpret: Interpret) -> None:
    assert max(interpret(calls.compiled_errors)) < FP8


def test_the_operator_passes_torchs_checks(interpret: Interpret) -> None:
    assert set(interpret(calls.check_operator).values()) == {"SUCCESS"}


def test_fake_tensors_pass_through_the_operator() -> None:
    inputs = meta_inputs(AttentionProblem(AttentionFamily(8, 1, 64), 4, 1, 4096))
    named = calls.arguments(inputs)
    left, right = named.pop("window_size")
    named |= dict.fromkeys(("partial", "partial_max", "partial_sum"))
    torch.ops.attn_tune.unified_attention(**named, window_left=left, window_right=right)


def bad(**changes: Any) -> None:
    """A call that must be refused before anything is launched."""
    fields = changes.pop("family", {})
    inputs = changes.pop("inputs", None) or calls.make_inputs(**fields)
    unified_attention(**(calls.arguments(inputs) | changes))


_SCALES = {"kv_dtype": "fp8_e4m3", "kv_scales": "per_token_head"}
_ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("q", {"q": torch.zeros(22, 4, 32)}),
        ("k", {"k": torch.zeros(20, 16, 2, 32, dtype=torch.uint8)}),
        ("v", {"v": torch.zeros(20, 16, 2, 32, dtype=torch.float16)}),
        ("q_dtype", {"q": torch.zeros(22, 4, 32, dtype=torch.float16)}),
        ("window_size", {"window_size": (7, 7), "causal": False}),
        ("k_descale", {"family": {"kv_dtype": "fp8_e4m3"}, "k_descale": torch.rand(3, 2)}),
        ("v_descale", {"family": {"kv_dtype": "fp8_e4m3"}, "v_descale": torch.rand(3, 2)}),
        ("k_descale", {"family": {"kv_dtype": "fp8_e4m3"}, "k_descale": _ONE.half()}),
        ("kv_scales", {"k_descale": torch.ones(30, 2, 16), "v_descale": torch.ones(30, 2, 16)}),
        ("alibi_slopes", {"alibi_slopes": torch.ones(3, 4)}),
        ("q_scales", {"q_scales": _ONE}),
        ("mm_prefix_range", {"mm_prefix_range": torch.zeros(3, 1, 2)}),
        ("use_alibi_sqrt", {"use_alibi_sqrt": True}),
        ("chunk_lookback", {"chunk_lookback": 2}),
        ("rswa_window", {"rswa_window": 128}),
    ],
)
def test_what_no_route_computes_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=rf"\b{name}\b"):
        bad(**changes)


def test_a_scale_with_other_strides_is_refused() -> None:
    inputs = calls.make_inputs(**_SCALES)
    other = inputs.v_scale.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(NotImplementedError, match="v_descale"):
        bad(inputs=inputs, v_descale=other)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("q", {"q": torch.zeros(22, 128, dtype=torch.bfloat16)}),
        ("k", {"k": torch.zeros(20, 16, 64, dtype=torch.bfloat16)}),
        ("k", {"q": torch.zeros(22, 4, 64, dtype=torch.bfloat16)}),
        ("v", {"v": torch.zeros(20, 8, 2, 32, dtype=torch.bfloat16)}),
        ("out", {"out": torch.zeros(22, 4, 16, dtype=torch.bfloat16)}),
        ("output_scale", {"out": torch.zeros(22, 4, 32).to(torch.float8_e4m3fn)}),
        ("cu_seqlens_q", {"cu_seqlens_q": torch.zeros(4, dtype=torch.int64)}),
        ("cu_seqlens_q", {"cu_seqlens_q": torch.zeros(3, dtype=torch.int32)}),
        ("block_table", {"block_table": torch.zeros(2, 10, dtype=torch.int32)}),
        ("block_table", {"block_table": torch.zeros(10, 3, dtype=torch.int32).T}),
        ("softcap", {"softcap": -1.0}),
        ("sinks", {"sinks": torch.ones(3)}),
        ("qq_bias", {"qq_bias": torch.ones(4, 4)}),
        ("v_descale", {"family": {"kv_dtype": "fp8_e4m3"}, "v_descale": None}),
        ("v_descale", {"family": _SCALES, "v_descale": _ONE}),
        ("k_descale", {"family": _SCALES, "kv_scale_order": "page_slot_head", "v_descale": None}),
        ("kv_scale_order", {"kv_scale_order": "head_page_slot"}),
        ("k_scale_cache", {"family": _SCALES, "k_scale_cache": _ONE}),
        ("paged_4d", {"route": "paged_4d"}),
        ("BLOCK_M", {"route": "paged_2d", "config": {"BLOCK_M": 24}}),
        ("BLOCK_M", {"family": {"num_query_heads": 64, "num_kv_heads": 1}, "config": {"BLOCK_M": 32}}),
        ("BLOCK_M", {"family": {"num_query_heads": 64, "num_kv_heads": 1}, "route": "paged_3d", "config": calls.SPLIT}),
        ("NUM_SEGMENTS", {"route": "paged_3d", "config": {"NUM_SEGMENTS": 0}}),
    ],
)
def test_contradictions_are_named(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        bad(**changes)


def test_an_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="sink_tokens"):
        bad(sink_tokens=4)


@pytest.mark.parametrize("part", ["partial", "partial_max", "partial_sum"])
def test_a_small_workspace_is_refused(part: str) -> None:
    inputs = calls.make_inputs()
    workspace = allocate_workspace_for([inputs.problem], "cpu", route="paged_3d", config=calls.SPLIT)
    small = Workspace(**(vars(workspace) | {part: getattr(workspace, part)[:-1].clone()}))
    with pytest.raises(ValueError, match=rf"workspace\.{part}\b"):
        bad(inputs=inputs, route="paged_3d", config=calls.SPLIT, workspace=small)


@pytest.mark.parametrize("empty", ["tokens", "sequences", "max_seqlen_q"])
def test_nothing_to_do_is_done(empty: str) -> None:
    inputs = calls.make_inputs()
    if empty == "tokens":
        inputs = replace(inputs, q=inputs.q[:0], out=inputs.out[:0])
    elif empty == "sequences":
        inputs = replace(inputs, seqused_k=inputs.seqused_k[:0])
    else:
        inputs = replace(inputs, max_seqlen_q=0)
    assert unified_attention(**calls.arguments(inputs)) is inputs.out


@pytest.mark.parametrize(
    ("window_size", "causal", "keys"),
    [
        ((-1, -1), True, 0),
        (None, True, 0),
        ((-1, 0), True, 0),
        ((127, 0), True, 128),
        ((127, -1), True, 128),
        ((0, 0), True, 1),
        ((-1, -1), False, 0),
    ],
)
def test_the_window_counts_the_query_itself(window_size: tuple[int, int] | None, causal: bool, keys: int) -> None:
    assert visible_window(window_size, causal) == keys
