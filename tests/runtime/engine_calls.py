"""Calls of unified_attention as serving engines make them, on random inputs; each runs in the interpreter's process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attn_tune.kernels.inputs import AttentionInputs
from attn_tune.kernels.random_inputs import random_inputs
from attn_tune.kernels.reference import reference_attention, relative_error
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.runtime.dispatch import unified_attention
from attn_tune.runtime.workspace import allocate_workspace_for

QUERY_LENS = [4, 1, 17]
KV_LENS = [37, 70, 150]
SPLIT = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 2, "num_stages": 1}


def make_inputs(**fields: Any) -> AttentionInputs:
    family = AttentionFamily(**({"num_query_heads": 4, "num_kv_heads": 2, "head_size": 32} | fields))
    problem = AttentionProblem(family, len(QUERY_LENS), max(QUERY_LENS), max(KV_LENS), sum(QUERY_LENS))
    return random_inputs(problem, "cpu", query_lens=QUERY_LENS, kv_lens=KV_LENS)


def arguments(inputs: AttentionInputs) -> dict[str, Any]:
    """The inputs under the names that engines use."""
    window = (inputs.sliding_window - 1, 0) if inputs.sliding_window else (-1, -1)
    renamed = {"q_descale": "q_scale", "k_descale": "k_scale", "v_descale": "v_scale", "output_scale": "out_scale"}
    same = (
        "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "softmax_scale", "causal",
        "block_table", "softcap", "alibi_slopes", "sinks", "qq_bias",
    )  # fmt: skip
    named = {name: getattr(inputs, name) for name in same} | {"window_size": window}
    return named | {name: getattr(inputs, field) for name, field in renamed.items()}


def error_of(inputs: AttentionInputs, **changes: Any) -> float:
    """The relative error of a call against the reference, with some arguments passed in another form."""
    unified_attention(**(arguments(inputs) | changes))
    return relative_error(inputs.out, reference_attention(inputs))


def family_error(fields: dict[str, Any], options: dict[str, Any]) -> float:
    return error_of(make_inputs(**fields), **options)


def expanded_scale_error() -> float:
    """One scale expanded to [num_seqs, num_kv_heads], as vLLM passes it."""
    inputs = make_inputs(kv_dtype="fp8_e4m3")
    shape = (len(QUERY_LENS), inputs.num_kv_heads)
    return error_of(inputs, k_descale=inputs.k_scale.expand(shape), v_descale=inputs.v_scale.expand(shape))


def unused_scale_error() -> float:
    """A scale beside a 16-bit cache, which vLLM passes and ignores."""
    scale = torch.full((1,), 7.0).expand(len(QUERY_LENS), 2)
    return error_of(make_inputs(), k_descale=scale, v_descale=scale)


def token_scale_error(style: str, route: str) -> float:
    """Scales per token in the three ways of passing them."""
    inputs = make_inputs(kv_dtype="fp8_e4m3", kv_scales="per_token_head")
    slot_first = [scale.transpose(1, 2).contiguous() for scale in (inputs.k_scale, inputs.v_scale)]
    changes: dict[str, Any] = {}
    if style == "page_slot_head":
        changes = {"k_descale": slot_first[0], "v_descale": slot_first[1], "kv_scale_order": style}
    elif style == "k_scale_cache":
        changes = {"k_scale_cache": slot_first[0], "v_scale_cache": slot_first[1], "k_descale": None, "v_descale": None}
    return error_of(inputs, route=route, **changes)


def positional_error() -> float:
    """The order of arguments that vLLM's and aiter's functions share."""
    inputs = make_inputs(kv_dtype="fp8_e4m3")
    named = arguments(inputs)
    order = (
        "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "softmax_scale", "causal",
        "window_size", "block_table", "softcap", "q_descale", "k_descale", "v_descale",
    )  # fmt: skip
    unified_attention(*(named[name] for name in order), seq_threshold_3D=8, backend="gluon", chunk_lookback=-1)
    return relative_error(inputs.out, reference_attention(inputs))


def fp8_output_error(route: str) -> float:
    inputs = make_inputs()
    scale = torch.tensor([0.013])
    out = torch.zeros(inputs.out.shape).to(torch.float8_e4m3fn)
    unified_attention(**(arguments(inputs) | {"out": out, "output_scale": scale, "route": route}))
    return relative_error(out.float() * scale, reference_attention(inputs))


def strided_output_error(route: str) -> tuple[float, bool]:
    """Output into every second element of a wider tensor; also whether the others were left alone."""
    inputs = make_inputs()
    wide = torch.full((inputs.q.shape[0], 4, 5, 64), float("nan"), dtype=torch.bfloat16)
    strided = replace(inputs, out=wide[:, :, 2, ::2])
    error = error_of(strided, route=route)
    wide[:, :, 2, ::2] = float("nan")
    return error, bool(wide.isnan().all())


def partials_error(given_workspace: bool) -> tuple[float, bool]:
    """Partials combined as their documentation says, and whether the output was left alone."""
    inputs = make_inputs()
    workspace = None
    if given_workspace:
        workspace = allocate_workspace_for([inputs.problem], "cpu", route="paged_3d", config=SPLIT)
    partial, largest, total = unified_attention(
        **arguments(inputs), route="paged_3d", config=SPLIT, skip_reduce=True, workspace=workspace
    )
    untouched = bool(inputs.out.isnan().all())
    weight = torch.exp2(largest - largest.amax(-1, keepdim=True))
    empty = weight == 0
    combined = (weight[..., None] * partial).masked_fill(empty[..., None], 0).sum(2)
    out = combined / (weight * total).masked_fill(empty, 0).sum(2)[..., None]
    return relative_error(out, reference_attention(inputs)), untouched


def unsplit_partials_error() -> float:
    inputs = make_inputs()
    out = unified_attention(**arguments(inputs), route="paged_2d", skip_reduce=True)
    return relative_error(out, reference_attention(inputs))


def workspace_errors() -> list[float]:
    """Two calls through one workspace, that of the larger one."""
    large, small = make_inputs(), make_inputs(num_query_heads=2)
    workspace = allocate_workspace_for([small.problem, large.problem], "cpu", route="paged_3d", config=SPLIT)
    before = vars(workspace).copy()
    errors = [error_of(inputs, route="paged_3d", config=SPLIT, workspace=workspace) for inputs in (large, small, large)]
    assert all(vars(workspace)[name] is tensor for name, tensor in before.items())
    assert torch.isfinite(workspace.partial_sum).any()
    return errors


def padded_error() -> float:
    """Rows of padding behind the last sequence, and a sequence without queries, as captured graphs have them."""
    inputs = make_inputs()
    q = torch.cat([inputs.q, torch.full((5, *inputs.q.shape[1:]), float("nan"), dtype=inputs.q.dtype)])
    out = torch.full_like(q, float("nan"))
    total = inputs.cu_seqlens_q[-1:]
    padded = replace(
        inputs,
        q=q,
        out=out,
        cu_seqlens_q=torch.cat([inputs.cu_seqlens_q, total]),
        seqused_k=torch.cat([inputs.seqused_k, torch.zeros(1, dtype=torch.int32)]),
        block_table=torch.cat([inputs.block_table, inputs.block_table[:1]]),
    )
    return error_of(padded, route="paged_3d", config=SPLIT)


def compiled_errors() -> list[float]:
    """Through torch.compile as one graph: the table's choice, and a choice and workspace of the caller's."""

    def attend(q: torch.Tensor, out: torch.Tensor, rest: dict[str, Any], options: dict[str, Any]) -> torch.Tensor:
        result = unified_attention(q * 2, out=out, **rest, **options)
        return result / 2

    inputs = make_inputs(kv_dtype="fp8_e4m3", sliding_window=24, softcap=True, sinks=True)
    workspace = allocate_workspace_for([inputs.problem], "cpu", route="paged_3d", config=SPLIT)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    errors = []
    for options in ({}, {"route": "paged_3d", "config": SPLIT, "workspace": workspace}):
        rest = {name: value for name, value in arguments(inputs).items() if name not in ("q", "out")}
        result = compiled(inputs.q, inputs.out, rest, options)
        expected = reference_attention(replace(inputs, q=inputs.q * 2))
        errors += [relative_error(inputs.out, expected), relative_error(result * 2, expected)]
        inputs.out.fill_(float("nan"))
    return errors


def check_operator() -> dict[str, str]:
    """torch's own checks of the operator: its schema, what it mutates, and its fake implementation."""
    inputs = make_inputs()
    named = arguments(inputs)
    left, right = named.pop("window_size")
    named |= {"window_left": left, "window_right": right, "partial": None, "partial_max": None, "partial_sum": None}
    inputs.out.zero_()
    operator = torch.ops.attn_tune.unified_attention.default
    tests = ("test_schema", "test_faketensor")
    return torch.library.opcheck(operator, (), named, test_utils=tests)
