"""From the arguments that serving engines pass to the kernels' inputs; whatever does not fit is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..kernels.inputs import TORCH_DTYPES, AttentionInputs
from ..problem import KV_DTYPES, Q_DTYPES

_Q_DTYPES = frozenset(TORCH_DTYPES[name] for name in Q_DTYPES)
_KV_DTYPES = frozenset(TORCH_DTYPES[name] for name in KV_DTYPES)
_SCALED_CACHES = frozenset((torch.float8_e4m3fn, torch.int8))

SCALE_ORDERS = ("page_head_slot", "page_slot_head")


def attention_inputs(
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
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    *,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    qq_bias: torch.Tensor | None,
    output_scale: torch.Tensor | None,
    kv_scale_order: str,
) -> AttentionInputs:
    """The inputs of one call; see :func:`~attn_tune.runtime.dispatch.unified_attention` for the arguments.

    Raises:
        NotImplementedError: an argument asks for what no route computes; the message begins with its name.
        ValueError: arguments contradict each other; the message begins with the name of one.
    """
    _check_tensors(q, k, v, out)
    _check_index(cu_seqlens_q, seqused_k, block_table)
    if softcap < 0:
        raise ValueError(f"softcap must not be negative, not {softcap}")
    if alibi_slopes is not None:
        _check_per_head("alibi_slopes", alibi_slopes, q.shape[1])
    if sinks is not None:
        _check_per_head("sinks", sinks, q.shape[1])
    if qq_bias is not None:
        _check_qq_bias(qq_bias, max_seqlen_q)
    if out.dtype == torch.float8_e4m3fn and output_scale is None:
        raise ValueError("output_scale is needed for out of dtype torch.float8_e4m3fn")
    inputs = AttentionInputs(
        q=q,
        k=k,
        v=v,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        seqused_k=seqused_k,
        block_table=block_table,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max(max_seqlen_k, 1),
        softmax_scale=softmax_scale,
        causal=causal,
        sliding_window=visible_window(window_size, causal),
        softcap=softcap,
        q_scale=_one_scale("q_descale", q_descale),
        k_scale=_cache_scale("k_descale", k_descale, k, kv_scale_order),
        v_scale=_cache_scale("v_descale", v_descale, k, kv_scale_order),
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        qq_bias=qq_bias,
        out_scale=_one_scale("output_scale", output_scale),
    )
    _check_scale_pair(inputs)
    return inputs


def visible_window(window_size: Sequence[int] | None, causal: bool) -> int:
    """The keys that a query sees, itself included, or 0 for all, of flash-attention's (left, right) window.

    A negative side is open. Causal attention sees nothing on the right, whatever that side says.

    Raises:
        NotImplementedError: a window without causal attention.
    """
    left, right = window_size or (-1, -1)
    if not causal and (left >= 0 or right >= 0):
        raise NotImplementedError(f"window_size {(left, right)} without causal attention is not supported")
    return max(left + 1, 0)


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    if q.dtype not in _Q_DTYPES:
        raise NotImplementedError(f"q of dtype {q.dtype} is not supported")
    if k.dtype not in _KV_DTYPES:
        raise NotImplementedError(f"k of dtype {k.dtype} is not supported")
    if v.dtype != k.dtype:
        raise NotImplementedError(f"v of dtype {v.dtype} beside k of dtype {k.dtype} is not supported")
    if q.dim() != 3:
        raise ValueError(f"q must be [num_tokens, num_query_heads, head_size], not {list(q.shape)}")
    if k.dim() == 4:
        if v.dim() != 4 or v.shape[:3] != k.shape[:3]:
            raise ValueError(f"v must have the pages, page size and heads of k {list(k.shape)}, not {list(v.shape)}")
        head_size, value_head_size = k.shape[3], v.shape[3]
    elif k.dim() == 5:
        head_size, value_head_size = _check_shuffled(k, v)
    else:
        raise ValueError(f"k must have 4 dimensions, or 5 if page-shuffled, not {k.dim()}")
    if head_size != q.shape[2]:
        raise ValueError(f"k has head size {head_size}, but q has {q.shape[2]}")
    if out.dim() != 3 or out.shape[:2] != q.shape[:2] or out.shape[2] != value_head_size:
        raise ValueError(f"out must be {[*q.shape[:2], value_head_size]}, not {list(out.shape)}")


def _check_shuffled(k: torch.Tensor, v: torch.Tensor) -> tuple[int, int]:
    """(head size, value head size) of a page-shuffled cache."""
    pages, heads, columns, page_size, x = k.shape
    if x != 16 // k.element_size():
        raise ValueError(f"k must have a last dimension of 16 bytes when page-shuffled, not {x * k.element_size()}")
    if v.dim() != 5 or v.shape[:3] != (pages, heads, page_size // x) or v.shape[4] != x:
        shape = [pages, heads, page_size // x, "value_head_size", x]
        raise ValueError(f"v must be {shape} when page-shuffled, not {list(v.shape)}")
    for name, cache in (("k", k), ("v", v)):
        _, _, rows, columns_stride, last = cache.stride()
        if (rows, columns_stride, last) != (cache.shape[3] * x, x, 1):
            raise NotImplementedError(f"{name}: strides within a page of a page-shuffled cache are not supported")
    return columns * x, v.shape[3]


def _check_index(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, block_table: torch.Tensor) -> None:
    num_seqs = seqused_k.shape[0]
    named = (("cu_seqlens_q", cu_seqlens_q, 1), ("seqused_k", seqused_k, 1), ("block_table", block_table, 2))
    for name, tensor, dims in named:
        if tensor.dtype != torch.int32 or tensor.dim() != dims or (tensor.stride(-1) != 1 and tensor.shape[-1] > 1):
            raise ValueError(f"{name} must be int32 with {dims} dimension(s), the last of stride 1")
    if cu_seqlens_q.shape[0] < num_seqs + 1:
        raise ValueError(f"cu_seqlens_q must have {num_seqs + 1} entries for seqused_k, not {cu_seqlens_q.shape[0]}")
    if block_table.shape[0] < num_seqs:
        raise ValueError(f"block_table must have {num_seqs} rows for seqused_k, not {block_table.shape[0]}")


def _check_per_head(name: str, values: torch.Tensor, num_query_heads: int) -> None:
    if values.dim() == 2:
        raise NotImplementedError(f"{name} that differs between sequences is not supported")
    if values.shape != (num_query_heads,) or not values.is_contiguous():
        raise ValueError(f"{name} must be contiguous with {num_query_heads} entries, not {list(values.shape)}")


def _check_qq_bias(qq_bias: torch.Tensor, max_seqlen_q: int) -> None:
    if qq_bias.dim() != 2 or qq_bias.stride(1) != 1 or qq_bias.shape[0] < max_seqlen_q:
        raise ValueError(
            f"qq_bias must be [queries, queries] with at least max_seqlen_q ({max_seqlen_q}) rows and a last stride of "
            f"1, not {list(qq_bias.shape)}"
        )


def _one_scale(name: str, scale: torch.Tensor | None) -> torch.Tensor | None:
    """A scale of a whole tensor as one element. Engines expand it to [num_seqs, heads], which all strides 0 show."""
    if scale is None:
        return None
    _check_scale_dtype(name, scale)
    if scale.numel() == 1 and scale.dim() <= 1:
        return scale
    if any(size > 1 and stride for size, stride in zip(scale.shape, scale.stride(), strict=True)):
        raise NotImplementedError(f"{name} of shape {list(scale.shape)} is not supported: it must be one scale")
    return scale.as_strided((1,), (1,))


def _cache_scale(name: str, scale: torch.Tensor | None, k: torch.Tensor, order: str) -> torch.Tensor | None:
    """One scale of the cache, or one for each token and head as [num_pages, num_kv_heads, page_size]."""
    if order not in SCALE_ORDERS:
        raise ValueError(f"kv_scale_order must be one of {', '.join(SCALE_ORDERS)}, not {order!r}")
    if scale is None:
        return None
    if scale.dim() != 3 or scale.numel() == 1:
        # Engines pass a scale with every cache; as in vLLM's and aiter's kernels a 16-bit cache has none.
        return _one_scale(name, scale) if k.dtype in _SCALED_CACHES else None
    _check_scale_dtype(name, scale)
    if order == "page_slot_head":
        scale = scale.transpose(1, 2)
    page_size, num_kv_heads = (k.shape[1], k.shape[2]) if k.dim() == 4 else (k.shape[3], k.shape[1])
    if scale.shape != (k.shape[0], num_kv_heads, page_size):
        expected = f"num_pages {k.shape[0]}, num_kv_heads {num_kv_heads} and page_size {page_size}"
        raise ValueError(f"{name} must have {expected} in the order of kv_scale_order ({order})")
    return scale


def _check_scale_dtype(name: str, scale: torch.Tensor) -> None:
    if not isinstance(scale, torch.Tensor):
        raise ValueError(f"{name} must be a tensor, not {type(scale).__name__}")
    if scale.dtype != torch.float32:
        raise NotImplementedError(f"{name} of dtype {scale.dtype} is not supported: scales are float32")


def _check_scale_pair(inputs: AttentionInputs) -> None:
    k_scale, v_scale = inputs.k_scale, inputs.v_scale
    if k_scale is None or v_scale is None:
        if k_scale is not v_scale:
            raise ValueError(f"{'k_descale' if k_scale is None else 'v_descale'} is missing beside the other one")
    elif k_scale.dim() != v_scale.dim():
        raise ValueError("v_descale must be one scale, or one per token and head, as k_descale is")
    elif k_scale.dim() == 3 and k_scale.stride() != v_scale.stride():
        raise NotImplementedError("v_descale with other strides than k_descale is not supported")
