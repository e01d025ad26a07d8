"""The tensors of one attention call, as a server passes them or as shapes only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..problem import AttentionFamily, AttentionProblem, dtype_name

TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class AttentionInputs:
    """The arguments of one call.

    ``q`` [num_tokens, num_query_heads, head_size]; ``k`` and ``v`` [num_pages, page_size, num_kv_heads, head size], or
    page-shuffled [num_pages, num_kv_heads, head_size / x, page_size, x] and [num_pages, num_kv_heads, page_size / x,
    value_head_size, x] with x = 16 bytes of elements; ``out`` [num_tokens, num_query_heads, value_head_size];
    ``cu_seqlens_q`` int32 [num_seqs + 1]; ``seqused_k`` int32 [num_seqs]; ``block_table`` int32 [num_seqs, max_pages].
    Scales are fp32: one element per tensor, or [num_pages, num_kv_heads, page_size] per token and head.
    ``sliding_window`` counts the keys that a query sees, itself included; 0 means no window.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    block_table: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    causal: bool = True
    sliding_window: int = 0
    softcap: float = 0.0
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    qq_bias: torch.Tensor | None = None
    out_scale: torch.Tensor | None = None

    @property
    def shuffled(self) -> bool:
        return self.k.dim() == 5

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[1] if self.shuffled else self.k.shape[2]

    @property
    def page_size(self) -> int:
        return self.k.shape[3] if self.shuffled else self.k.shape[1]

    @property
    def value_head_size(self) -> int:
        return self.v.shape[3]

    @property
    def per_token_scales(self) -> bool:
        return self.k_scale is not None and self.k_scale.dim() == 3

    @cached_property
    def family(self) -> AttentionFamily:
        """The family that these tensors belong to. Raises ValueError naming what does not fit."""
        scales = "none" if self.k_scale is None else "per_token_head" if self.per_token_scales else "per_tensor"
        return AttentionFamily(
            num_query_heads=self.q.shape[1],
            num_kv_heads=self.num_kv_heads,
            head_size=self.q.shape[2],
            page_size=self.page_size,
            q_dtype=dtype_name(self.q.dtype),
            kv_dtype=dtype_name(self.k.dtype),
            kv_scales=scales,
            kv_layout="shuffled" if self.shuffled else "paged",
            value_head_size=self.value_head_size,
            sliding_window=self.sliding_window,
            causal=self.causal,
            sinks=self.sinks is not None,
            softcap=self.softcap > 0,
            alibi=self.alibi_slopes is not None,
            qq_bias=self.qq_bias is not None,
        )

    @cached_property
    def problem(self) -> AttentionProblem:
        return AttentionProblem(
            self.family, self.seqused_k.shape[0], self.max_seqlen_q, self.max_seqlen_k, min(
                self.q.shape[0], self.seqused_k.shape[0] * self.max_seqlen_q
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Workspace:
    """Room for the partials of a split call: fp32, flat, reused from call to call so that nothing is allocated."""

    partial: torch.Tensor
    partial_max: torch.Tensor
    partial_sum: torch.Tensor


def allocate_workspace(
    num_tokens: int, num_query_heads: int, num_segments: int, value_head_size_padded: int, device: Any
) -> Workspace:
    """A workspace for at most this many tokens, heads and segments."""
    rows = num_tokens * num_query_heads * num_segments
    return Workspace(
        torch.empty(rows * value_head_size_padded, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
    )


def _cache_shapes(family: AttentionFamily, num_pages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    heads, page = family.num_kv_heads, family.page_size
    if family.kv_layout == "paged":
        return (num_pages, page, heads, family.head_size), (num_pages, page, heads, family.value_head_size)
    x = 16 // TORCH_DTYPES[family.kv_dtype].itemsize
    return (num_pages, heads, family.head_size // x, page, x), (num_pages, heads, page // x, family.value_head_size, x)


def empty_inputs(problem: AttentionProblem, device: Any, *, num_pages: int = 0) -> AttentionInputs:
    """Inputs of the right shapes and dtypes with nothing in them; every sequence has the maximum lengths.

    ``num_pages`` 0 means just enough pages for every sequence to have its own.
    """
    family = problem.family
    max_pages = -(-problem.max_seqlen_k // family.page_size)
    k_shape, v_shape = _cache_shapes(family, num_pages or problem.num_seqs * max_pages)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    q_dtype, kv_dtype = TORCH_DTYPES[family.q_dtype], TORCH_DTYPES[family.kv_dtype]
    scale_shape: tuple[int, ...] = (1,)
    if family.kv_scales == "per_token_head":
        scale_shape = (k_shape[0], family.num_kv_heads, family.page_size)
    scaled = family.kv_scales != "none"
    return AttentionInputs(
        q=empty(problem.num_tokens, family.num_query_heads, family.head_size, dtype=q_dtype),
        k=empty(*k_shape, dtype=kv_dtype),
        v=empty(*v_shape, dtype=kv_dtype),
        out=empty(
            problem.num_tokens,
            family.num_query_heads,
            family.value_head_size,
            dtype=torch.bfloat16 if family.q_dtype == "fp8_e4m3" else q_dtype,
        ),
        cu_seqlens_q=empty(problem.num_seqs + 1, dtype=torch.int32),
        seqused_k=empty(problem.num_seqs, dtype=torch.int32),
        block_table=empty(problem.num_seqs, max_pages, dtype=torch.int32),
        max_seqlen_q=problem.max_seqlen_q,
        max_seqlen_k=problem.max_seqlen_k,
        softmax_scale=family.head_size**-0.5,
        causal=family.causal,
        sliding_window=family.sliding_window,
        softcap=50.0 if family.softcap else 0.0,
        q_scale=empty(1) if family.q_dtype == "fp8_e4m3" else None,
        k_scale=empty(*scale_shape) if scaled else None,
        v_scale=empty(*scale_shape) if scaled else None,
        sinks=empty(family.num_query_heads, dtype=torch.bfloat16) if family.sinks else None,
        alibi_slopes=empty(family.num_query_heads) if family.alibi else None,
        qq_bias=empty(problem.max_seqlen_q, problem.max_seqlen_q) if family.qq_bias else None,
    )


def meta_inputs(problem: AttentionProblem) -> AttentionInputs:
    """Inputs on torch's meta device: shapes, strides and dtypes without memory, for compiling.

    The cache is given 4 GiB or more, as on a server: a compiler may use 32-bit addressing below 2 GiB only, and code
    for a large cache is right for a small one too.
    """
    page_bytes = problem.family.bytes_per_token * problem.family.page_size // 2
    enough = problem.num_seqs * -(-problem.max_seqlen_k // problem.family.page_size)
    return empty_inputs(problem, "meta", num_pages=max(enough, (4 << 30) // max(page_bytes, 1) + 1))
