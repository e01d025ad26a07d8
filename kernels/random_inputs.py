"""Random inputs that expose the faults attention kernels have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..problem import AttentionProblem
from .inputs import AttentionInputs, empty_inputs


def random_inputs(
    problem: AttentionProblem,
    device: Any,
    *,
    query_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    num_pages: int = 0,
    seed: int = 0,
    poison: bool = True,
) -> AttentionInputs:
    """Random inputs that expose common faults.

    Pages are permuted, scales are far from 1, per-token magnitudes differ by up to 20 times, the output holds NaN,
    block-table entries past a sequence's last page are out of range, and with ``poison`` the cache slots that no
    sequence uses hold NaN (as do their scales). Lengths default to the maximum for every sequence.
    """
    family = problem.family
    query_lens = list(query_lens or [problem.max_seqlen_q] * problem.num_seqs)
    kv_lens = list(kv_lens or [problem.max_seqlen_k] * problem.num_seqs)
    if len(query_lens) != problem.num_seqs or len(kv_lens) != problem.num_seqs:
        raise ValueError(f"query_lens and kv_lens need {problem.num_seqs} entries, one for each sequence")
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device)

    sized = AttentionProblem(family, problem.num_seqs, problem.max_seqlen_q, problem.max_seqlen_k, sum(query_lens))
    inputs = empty_inputs(sized, device, num_pages=num_pages)
    pages = inputs.k.shape[0]
    slots = pages * family.page_size

    q_values = normal(*inputs.q.shape)
    if inputs.q_scale is not None:
        inputs.q_scale.fill_(0.37)
    inputs.q.copy_(q_values.to(inputs.q.dtype))

    # The block table: each sequence's pages drawn from a permutation (shared cyclically if there are too few pages).
    order = torch.randperm(pages, generator=generator, device=device, dtype=torch.int32)
    inputs.block_table.fill_(2**30)
    used_slot = torch.zeros(slots, dtype=torch.bool, device=device)
    taken = 0
    for seq, kv_len in enumerate(kv_lens):
        count = -(-kv_len // family.page_size)
        index = torch.arange(taken, taken + count, device=device) % pages
        inputs.block_table[seq, :count] = order[index]
        taken += count
        key = torch.arange(kv_len, device=device)
        page = inputs.block_table[seq, key // family.page_size].long()
        used_slot[page * family.page_size + key % family.page_size] = True

    unused = ~used_slot.view(pages, family.page_size)
    for cache, scale, unused_mask in (
        (inputs.k, inputs.k_scale, unused[:, None, None, :, None] if inputs.shuffled else unused[:, :, None, None]),
        (
            inputs.v,
            inputs.v_scale,
            _shuffled_value_mask(inputs, unused) if inputs.shuffled else unused[:, :, None, None],
        ),
    ):
        _fill_cache(cache, generator)
        if scale is not None:
            _fill_scale(scale, cache.dtype, generator)
        if poison:
            _poison(cache, unused_mask)
            if scale is not None and scale.dim() == 3:
                scale.masked_fill_(unused[:, None, :], float("nan"))

    inputs.cu_seqlens_q.copy_(torch.tensor([0, *query_lens], device=device).cumsum(0))
    inputs.seqused_k.copy_(torch.tensor(kv_lens, device=device))
    for optional, scale in ((inputs.sinks, 2.0), (inputs.qq_bias, 1.0)):
        if optional is not None:
            optional.copy_(normal(*optional.shape) * scale)
    if inputs.alibi_slopes is not None:
        inputs.alibi_slopes.copy_(uniform(*inputs.alibi_slopes.shape) * 0.01 + 1e-3)
    inputs.out.copy_(torch.full_like(inputs.out, float("nan"), dtype=torch.float32).to(inputs.out.dtype))
    return inputs


def _shuffled_value_mask(inputs: AttentionInputs, unused: torch.Tensor) -> torch.Tensor:
    return unused.view(unused.shape[0], 1, inputs.v.shape[2], 1, inputs.v.shape[4])


def _fill_cache(cache: torch.Tensor, generator: torch.Generator) -> None:
    magnitude = {torch.int8: 40.0, torch.float8_e4m3fn: 20.0}.get(cache.dtype, 1.0)
    flat = cache.view(cache.shape[0], -1)
    step = max(1, (64 << 20) // flat.shape[1])  # in chunks, to bound the memory of the fp32 values
    for begin in range(0, cache.shape[0], step):
        part = flat[begin : begin + step]
        values = torch.randn(part.shape, generator=generator, device=cache.device) * magnitude
        part.copy_(values.clamp(-127, 127).to(cache.dtype))


def _fill_scale(scale: torch.Tensor, cache_dtype: torch.dtype, generator: torch.Generator) -> None:
    unit = 0.021 if cache_dtype == torch.int8 else 0.043
    if scale.dim() == 3:  # magnitudes from 1/20 to 1 of one another
        spread = torch.rand(scale.shape, generator=generator, device=scale.device) * -3.0
        scale.copy_(torch.exp(spread) * unit * 1.7)
    else:
        scale.fill_(unit)


def _poison(cache: torch.Tensor, mask: torch.Tensor) -> None:
    if cache.dtype == torch.float8_e4m3fn:
        cache.view(torch.uint8).masked_fill_(mask, 0x7F)  # e4m3's NaN
    elif cache.dtype.is_floating_point:
        cache.masked_fill_(mask, float("nan"))
