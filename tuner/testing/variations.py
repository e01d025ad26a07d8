"""The other ways in which servers pass a call, and values that expose rounding and overflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..kernels.inputs import AttentionInputs

E4M3_MAX = 448.0


def fill_with_nan(tensor: torch.Tensor) -> None:
    """Set every byte of a contiguous tensor to 0xFF, which is a NaN in each floating-point dtype of the project."""
    tensor.view(torch.uint8).fill_(0xFF)


def _view_of_larger(tensor: torch.Tensor, shape: Sequence[int], step: int = 1) -> torch.Tensor:
    """A copy of ``tensor`` as the first part of a NaN-filled buffer; ``step`` is its stride in the last dimension."""
    buffer = torch.empty(*shape[:-1], shape[-1] * step, dtype=tensor.dtype, device=tensor.device)
    fill_with_nan(buffer)
    view = buffer[..., ::step][tuple(slice(size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def padded(inputs: AttentionInputs) -> AttentionInputs:
    """Query, cache, output and block table as views of larger tensors: more heads, longer heads, more columns."""

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        *rows, heads, size = tensor.shape
        return _view_of_larger(tensor, (*rows, heads + 1, size + 16))

    table = inputs.block_table
    return replace(
        inputs,
        q=pad(inputs.q),
        k=pad(inputs.k),
        v=pad(inputs.v),
        out=pad(inputs.out),
        block_table=_widened(table, table.shape[1] + 5)[:, : table.shape[1]],
    )


def _widened(table: torch.Tensor, columns: int) -> torch.Tensor:
    """A block table with more columns, which hold page numbers out of range."""
    wide = torch.full((table.shape[0], columns), 2**30, dtype=table.dtype, device=table.device)
    wide[:, : table.shape[1]] = table
    return wide


def wide_table(inputs: AttentionInputs) -> AttentionInputs:
    """A block table wider than the longest sequence needs, its width a multiple of 16."""
    return replace(inputs, block_table=_widened(inputs.block_table, (inputs.block_table.shape[1] // 16 + 1) * 16))


def strided_elements(inputs: AttentionInputs) -> AttentionInputs:
    """Query, cache and output with every other element of the last dimension unused."""

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        return _view_of_larger(tensor, tensor.shape, step=2)

    return replace(inputs, q=spread(inputs.q), k=spread(inputs.k), v=spread(inputs.v), out=spread(inputs.out))


def heads_first(inputs: AttentionInputs) -> AttentionInputs:
    """A cache stored [num_pages, num_kv_heads, page_size, head size] ("HND") and passed as a view."""

    def store(cache: torch.Tensor) -> torch.Tensor:
        return cache.transpose(1, 2).contiguous().transpose(1, 2)

    return replace(inputs, k=store(inputs.k), v=store(inputs.v))


def shared_buffer(inputs: AttentionInputs) -> AttentionInputs:
    """K and V of each page side by side in one buffer: [num_pages, 2, ...]."""
    pages, *rest = inputs.k.shape
    buffer = torch.empty(pages, 2, *rest, dtype=inputs.k.dtype, device=inputs.k.device)
    buffer[:, 0].copy_(inputs.k)
    buffer[:, 1].copy_(inputs.v)
    return replace(inputs, k=buffer[:, 0], v=buffer[:, 1])


def scales_by_slot(inputs: AttentionInputs) -> AttentionInputs:
    """Per-token scales stored [num_pages, page_size, num_kv_heads], as vLLM does, and passed as a view."""
    assert inputs.k_scale is not None and inputs.v_scale is not None  # noqa: PT018
    k_scale, v_scale = (s.transpose(1, 2).contiguous().transpose(1, 2) for s in (inputs.k_scale, inputs.v_scale))
    return replace(inputs, k_scale=k_scale, v_scale=v_scale)


def padding_rows(inputs: AttentionInputs) -> AttentionInputs:
    """Five rows of query and output more than the sequences cover, as a captured graph has."""

    def lengthen(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.shape[0]
        longer = torch.empty(rows + 5, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
        fill_with_nan(longer)
        longer[:rows].copy_(tensor)
        return longer

    return replace(inputs, q=lengthen(inputs.q), out=lengthen(inputs.out))


def frozen_capacity(inputs: AttentionInputs) -> AttentionInputs:
    """Maximum lengths beyond the batch and the block table, as a captured graph freezes them."""
    return replace(inputs, max_seqlen_q=4 * inputs.max_seqlen_q, max_seqlen_k=1_000_000)


def _fp8_output(inputs: AttentionInputs, scale: float) -> AttentionInputs:
    out = torch.empty(inputs.out.shape, dtype=torch.float8_e4m3fn, device=inputs.out.device)
    fill_with_nan(out)
    return replace(inputs, out=out, out_scale=torch.full((1,), scale, device=out.device))


def fp8_output(inputs: AttentionInputs) -> AttentionInputs:
    """An e4m3 output whose scale leaves headroom."""
    return _fp8_output(inputs, 0.013)


def clamped_output(inputs: AttentionInputs) -> AttentionInputs:
    """An e4m3 output whose scale is too small for the largest values: they saturate."""
    return _fp8_output(inputs, 0.001)


def _absolute(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.float8_e4m3fn:
        return (tensor.view(torch.uint8) & 0x7F).view(torch.float8_e4m3fn)
    return tensor.abs()


def positive_values(inputs: AttentionInputs) -> AttentionInputs:
    """V without signs, so that a bias of probabilities is a bias of the output."""
    return replace(inputs, v=_absolute(inputs.v))


def huge_logits(inputs: AttentionInputs) -> AttentionInputs:
    """Logits of several thousand, whose exponential overflows fp32."""
    return replace(inputs, q=inputs.q * 1000)


def opposed_signs(inputs: AttentionInputs) -> AttentionInputs:
    """Every logit far below zero: a masked key taken for a logit of zero would get all the weight."""
    return replace(inputs, q=_absolute(inputs.q) * -10, k=_absolute(inputs.k))
