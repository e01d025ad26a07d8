"""Paged attention in fp32 torch, written for clarity: what every kernel's output is compared with."""

from __future__ import annotations

from collections.abc import Collection

import torch

from .inputs import AttentionInputs


def gather_cache(inputs: AttentionInputs, seq: int, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys and values of one sequence, dequantised to fp32: [kv_len, num_kv_heads, head size] each."""
    page_size = inputs.page_size
    key = torch.arange(kv_len, device=inputs.q.device)
    page = inputs.block_table[seq, key // page_size].long()
    slot = key % page_size
    if inputs.shuffled:
        x = inputs.k.shape[4]
        k = inputs.k[page, :, :, slot, :].flatten(2)
        v = inputs.v[page, :, slot // x, :, slot % x]
    else:
        k, v = inputs.k[page, slot], inputs.v[page, slot]
    k, v = k.float(), v.float()
    if inputs.k_scale is not None and inputs.v_scale is not None:
        if inputs.per_token_scales:
            k = k * inputs.k_scale[page, :, slot][:, :, None]
            v = v * inputs.v_scale[page, :, slot][:, :, None]
        else:
            k, v = k * inputs.k_scale, v * inputs.v_scale
    return k, v


def reference_attention(inputs: AttentionInputs, sequences: Collection[int] | None = None) -> torch.Tensor:
    """The exact result in fp32, [num_tokens, num_query_heads, value_head_size], of some or all sequences.

    Tokens of no sequence, and of sequences without keys, are NaN: kernels must leave those rows alone. An output scale
    is applied, without rounding to the output's dtype.
    """
    out = torch.full(inputs.out.shape, float("nan"), dtype=torch.float32, device=inputs.q.device)
    starts = inputs.cu_seqlens_q.tolist()
    group = inputs.q.shape[1] // inputs.num_kv_heads
    for seq, kv_len in enumerate(inputs.seqused_k.tolist()):
        begin, end = starts[seq], starts[seq + 1]
        if begin == end or kv_len == 0 or (sequences is not None and seq not in sequences):
            continue
        k, v = gather_cache(inputs, seq, kv_len)
        q = inputs.q[begin:end].float()
        if inputs.q_scale is not None:
            q = q * inputs.q_scale
        for first in range(0, end - begin, 256):  # bounds the memory of the logits
            rows = slice(first, min(first + 256, end - begin))
            out[begin:end][rows] = _attend(inputs, q[rows], k, v, first, end - begin, group)
    if inputs.out_scale is not None:
        out = out / inputs.out_scale
    return out


def _attend(
    inputs: AttentionInputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, query_len: int, group: int
) -> torch.Tensor:
    rows, heads = q.shape[:2]
    kv_len = k.shape[0]
    context_len = kv_len - query_len
    grouped = q.view(rows, heads // group, group, -1)
    logits = torch.einsum("qhgd,khd->hgqk", grouped, k).reshape(heads, rows, kv_len) * inputs.softmax_scale
    position = context_len + first + torch.arange(rows, device=q.device)[:, None]
    key = torch.arange(kv_len, device=q.device)[None, :]
    if inputs.softcap:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    if inputs.alibi_slopes is not None:
        logits = logits + inputs.alibi_slopes.float()[:, None, None] * (key - context_len)
    if inputs.qq_bias is not None:
        bias = torch.zeros(rows, kv_len, device=q.device)
        shared = min(query_len, inputs.qq_bias.shape[1])
        bias[:, context_len : context_len + shared] = inputs.qq_bias.float()[first : first + rows, :shared]
        logits = logits + bias
    if inputs.causal:
        visible = key <= position
        if inputs.sliding_window:
            visible = visible & (position - key < inputs.sliding_window)
        logits = logits.masked_fill(~visible, float("-inf"))
    if inputs.sinks is not None:
        sink = inputs.sinks.float()[:, None, None].expand(-1, rows, 1)
        weights = torch.softmax(torch.cat([logits, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(logits, dim=-1)
    grouped_weights = weights.view(heads // group, group, rows, kv_len)
    return torch.einsum("hgqk,khd->qhgd", grouped_weights, v).reshape(rows, heads, -1)


def relative_error(out: torch.Tensor, expected: torch.Tensor, unchecked_rows: bool = False) -> float:
    """Relative L2 error over the rows that have a result; infinite if one was not written or a padding row was.

    ``expected`` comes from :func:`reference_attention`; ``out`` was filled with NaN before the call. With
    ``unchecked_rows`` the NaN rows of ``expected`` are results that were not computed, which must only be finite.
    """
    out = out.float()
    padding = expected.isnan()
    as_it_should = torch.isfinite if unchecked_rows else torch.isnan
    if not as_it_should(out[padding]).all() or not torch.isfinite(out[~padding]).all():
        return float("inf")
    wanted = expected[~padding]
    difference = torch.linalg.vector_norm(out[~padding] - wanted)
    return float(difference / torch.linalg.vector_norm(wanted).clamp_min(1e-30))
