"""Paged attention as serving engines call it: the table picks the kernel, this launches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..kernels import Kernel
from ..kernels.inputs import AttentionInputs, Workspace
from ..kernels.launch import run_launch
from .arguments import attention_inputs
from .choose import choose
from .workspace import Partials, partials_of, splits, workspace_for

# Keywords of vLLM's and aiter's functions that choose how to compute, or repeat what dtypes and shapes say.
_IGNORED = frozenset(
    (
        "seq_threshold_3D",
        "num_par_softmax_segments",
        "softmax_segm_output",
        "softmax_segm_max",
        "softmax_segm_expsum",
        "decode_query_len",
        "kv_quant_mode",
        "use_td",
        "backend",
        "shuffled_kv_cache",
    )
)
# Those that change the result, with the value that does not.
_UNSUPPORTED: dict[str, Any] = {
    "q_scales": None,
    "mm_prefix_range": None,
    "use_alibi_sqrt": False,
    "chunk_lookback": -1,
    "rswa_prefix_lens": None,
    "rswa_window": None,
}


def unified_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: Sequence[int] | None,
    block_table: torch.Tensor,
    softcap: float = 0.0,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    *,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    k_scale_cache: torch.Tensor | None = None,
    v_scale_cache: torch.Tensor | None = None,
    kv_scale_order: str = "page_head_slot",
    skip_reduce: bool = False,
    workspace: Workspace | None = None,
    route: str | None = None,
    config: Mapping[str, int] | None = None,
    total_seqlen_k: int = 0,
    **engine: Any,
) -> torch.Tensor | Partials:
    """Attention of a batch of any mix of decode, verify and prefill over a paged KV cache, written to ``out``.

    The positional arguments are those that vLLM's and aiter's functions of this name share. ``q`` [num_tokens,
    num_query_heads, head_size]; ``k`` and ``v`` [num_pages, page_size, num_kv_heads, head size], or page-shuffled with
    5 dimensions; ``out`` [num_tokens, num_query_heads, value_head_size] in any strides; ``cu_seqlens_q`` int32
    [num_seqs + 1]; ``seqused_k`` int32 [num_seqs]; ``block_table`` int32 [num_seqs, max_pages]. The maximal lengths
    choose kernel and grid; a captured graph keeps those it was captured with. Rows of ``q`` past the last sequence, and
    those of sequences without keys, are left alone.

    Args:
        window_size: (left, right) as in flash-attention: (-1, -1) or None is no window, (W - 1, 0) lets a query see W
            keys, itself included.
        softcap: logits become ``softcap * tanh(logits / softcap)``; 0 is none.
        q_descale, output_scale: one fp32 scale each; the output is divided by its scale and then clamped to e4m3.
        k_descale, v_descale: of an 8-bit cache. One fp32 scale, also expanded to [num_seqs, num_kv_heads]; or one per
            token and head in ``kv_scale_order``: "page_head_slot" is [num_pages, num_kv_heads, page_size],
            "page_slot_head" [num_pages, page_size, num_kv_heads].
        k_scale_cache, v_scale_cache: vLLM's names for scales per token and head, in the order "page_slot_head".
        alibi_slopes, sinks: [num_query_heads].
        qq_bias: [queries, queries], added to the logits among the query tokens of a sequence.
        skip_reduce: hand back the partial results of a split call and leave ``out`` alone.
        workspace: of :func:`~attn_tune.runtime.workspace.allocate_workspace_for`, so that nothing is allocated.
        route: the kernel to use instead of the table's.
        config: entries that override those of the table's config.
        total_seqlen_k: the sum of the key lengths, where the engine knows it: helps to choose for uneven batches.
        engine: scheduling hints of vLLM and aiter (seq_threshold_3D, num_par_softmax_segments, softmax_segm_*, backend,
            ...) are accepted and ignored; their further features only with the value that turns them off.

    Returns:
        ``out``; the partials where ``skip_reduce`` is set and the route splits.

    Raises:
        NotImplementedError: an argument asks for what the route, or no route, computes; the message names it.
        ValueError: arguments contradict each other; the message names one.
        TypeError: an unknown keyword.
    """
    if engine:
        _check_engine_keywords(engine)
    if k_scale_cache is not None or v_scale_cache is not None:
        if k_descale is not None or v_descale is not None:
            raise ValueError("k_scale_cache and v_scale_cache exclude k_descale and v_descale")
        k_descale, v_descale, kv_scale_order = k_scale_cache, v_scale_cache, "page_slot_head"
    if torch.compiler.is_compiling():
        if skip_reduce:
            raise NotImplementedError("skip_reduce under torch.compile is not supported")
        left, right = window_size or (-1, -1)
        partials = tuple(vars(workspace).values()) if workspace else (None, None, None)
        overrides = ",".join([f"{name}={value}" for name, value in (config or {}).items()])
        _operator(
            q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, left, right,
            block_table, *partials, softcap, q_descale, k_descale, v_descale, alibi_slopes, sinks, qq_bias,
            output_scale, kv_scale_order, route, overrides, total_seqlen_k,
        )  # fmt: skip
        return out
    inputs = attention_inputs(
        q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
        block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=alibi_slopes, sinks=sinks, qq_bias=qq_bias,
        output_scale=output_scale, kv_scale_order=kv_scale_order,
    )  # fmt: skip
    if not (q.shape[0] and seqused_k.shape[0] and max_seqlen_q):
        return out
    kernel, settings = choose(inputs.problem, q.is_cuda, route, config, total_seqlen_k)
    with _on_device(q):
        return _launch(kernel, inputs, settings, workspace, skip_reduce)


def _check_engine_keywords(engine: Mapping[str, Any]) -> None:
    for name, value in engine.items():
        if name in _IGNORED:
            continue
        if name not in _UNSUPPORTED:
            raise TypeError(f"unified_attention() got an unexpected keyword argument {name!r}")
        if value is not None and (isinstance(value, torch.Tensor) or value != _UNSUPPORTED[name]):
            raise NotImplementedError(f"{name} is not supported")


def _launch(
    kernel: Kernel, inputs: AttentionInputs, config: Mapping[str, int], workspace: Workspace | None, skip_reduce: bool
) -> torch.Tensor | Partials:
    if not splits(kernel):
        for launch in kernel.plan(inputs, config, workspace):
            run_launch(launch)
        return inputs.out
    num_segments = config["NUM_SEGMENTS"]
    workspace = workspace_for(inputs, num_segments, workspace)
    attention, reduce = kernel.plan(inputs, config, workspace)
    run_launch(attention)
    if skip_reduce:
        return partials_of(inputs, num_segments, workspace)
    run_launch(reduce)
    return inputs.out


def _on_device(q: torch.Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which in a process of several need not be the tensors'."""
    elsewhere = q.is_cuda and q.device.index != torch.cuda.current_device()
    guard: AbstractContextManager[Any] = torch.cuda.device(q.device) if elsewhere else nullcontext()
    return guard


def _as_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    block_table: torch.Tensor,
    partial: torch.Tensor | None,
    partial_max: torch.Tensor | None,
    partial_sum: torch.Tensor | None,
    softcap: float = 0.0,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    kv_scale_order: str = "page_head_slot",
    route: str | None = None,
    config: str = "",
    total_seqlen_k: int = 0,
) -> None:
    """:func:`unified_attention` as one opaque step for torch.compile; ``config`` is "NAME=VALUE,...".

    The workspace's tensors have no default: torch drops trailing defaults, and 2.11 then misses what is written to.
    """
    workspace = None
    if partial is not None and partial_max is not None and partial_sum is not None:
        workspace = Workspace(partial, partial_max, partial_sum)
    entries = (entry.split("=") for entry in config.split(",") if entry)
    unified_attention(
        q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal,
        (window_left, window_right), block_table, softcap, q_descale, k_descale, v_descale,
        alibi_slopes=alibi_slopes, sinks=sinks, qq_bias=qq_bias, output_scale=output_scale,
        kv_scale_order=kv_scale_order, workspace=workspace, route=route,
        config={name: int(value) for name, value in entries}, total_seqlen_k=total_seqlen_k,
    )  # fmt: skip


_operator = torch.library.custom_op(
    "attn_tune::unified_attention", _as_operator, mutates_args=("out", "partial", "partial_max", "partial_sum")
)
# It returns nothing and no shape depends on data, so that tracing has nothing to do.
_operator.register_fake(lambda *arguments, **keywords: None)
