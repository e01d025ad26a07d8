"""Small Triton kernels that the compile tests compile: a paged attention loop, a copy, and every way to fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from attn_tune.kernels.protocol import Config, Launch


@triton.jit
def paged_kernel(
    query,  # [num_tokens, HEAD_SIZE]
    keys,  # [num_pages, PAGE_SIZE, HEAD_SIZE]
    values,
    page_table,  # [num_seqs, max_pages]
    output,
    num_keys,
    stride_page,
    scale,
    BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
):
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, HEAD_SIZE)
    offsets = tl.arange(0, TILE_SIZE)
    q = tl.load(query + rows[:, None] * HEAD_SIZE + columns[None, :])
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_SIZE], tl.float32)
    for start in range(0, num_keys, TILE_SIZE):
        position = start + offsets
        page = tl.load(page_table + position // PAGE_SIZE).to(tl.int64)
        at = page * stride_page + (position % PAGE_SIZE) * HEAD_SIZE
        k = tl.load(keys + at[None, :] + columns[:, None]).to(q.dtype)
        v = tl.load(values + at[:, None] + columns[None, :]).to(q.dtype)
        logits = tl.dot(q, k) * scale
        peak = tl.maximum(top, tl.max(logits, 1))
        p = tl.exp2(logits - peak[:, None])
        alpha = tl.exp2(top - peak)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(q.dtype), v)
        top = peak
    tl.store(output + rows[:, None] * HEAD_SIZE + columns[None, :], (acc / total[:, None]).to(q.dtype))


def paged_launch(
    kv_dtype: torch.dtype = torch.bfloat16, num_pages: int = 64, head_size: int = 128, **changes: int
) -> Launch:
    """A launch of :func:`paged_kernel` with meta tensors; ``changes`` override its constants and options."""
    constants = {"BLOCK_M": 32, "TILE_SIZE": 64, "PAGE_SIZE": 16, "HEAD_SIZE": head_size}
    options = {"num_warps": 4, "num_stages": 2, "waves_per_eu": 0}
    for name, value in changes.items():
        (constants if name in constants else options)[name] = value
    cache = torch.empty(num_pages, 16, head_size, dtype=kv_dtype, device="meta")
    query = torch.empty(32, head_size, dtype=torch.bfloat16, device="meta")
    arguments: dict[str, Any] = {
        "query": query,
        "keys": cache,
        "values": cache,
        "page_table": torch.empty(1, 64, dtype=torch.int32, device="meta"),
        "output": query,
        "num_keys": 1000,
        "stride_page": 16 * head_size,
        "scale": 0.125,
    }
    return Launch(f"{__name__}:paged_kernel", (1, 1, 1), arguments, constants, options)


@triton.jit(do_not_specialize=["free"])
def integers_kernel(output, one, sixteen, big, free, absent, flag):
    if absent is not None:
        tl.store(output, absent)
    tl.store(output + one, sixteen + big + free + flag)


@triton.jit
def refused_kernel(output):
    tl.static_assert(False, "this size is not for me")


@triton.jit
def hanging_kernel(output):
    for index in tl.static_range(1 << 40):
        tl.store(output + index, 1.0)


@triton.jit
def copy_kernel(output):
    offsets = tl.arange(0, 64)
    tl.store(output + offsets, tl.load(output + offsets) + 1.0)


def one_tensor_launch(function: str) -> Launch:
    """A launch of one of the kernels whose only argument is a tensor."""
    output = torch.empty(64, dtype=torch.float32, device="meta")
    module, _, name = function.rpartition(":")
    return Launch(f"{module or __name__}:{name}", (1, 1, 1), {"output": output}, {}, {"num_warps": 1})


@dataclass(frozen=True)
class SampleRoute:
    """A route whose config says which kernel to compile: KERNEL is an index into :data:`FUNCTIONS`."""

    name: str = "sample"

    def plan(self, inputs: Any, config: Config, workspace: Any = None) -> list[Launch]:
        if config["KERNEL"] == 0:
            constants = {name: config[name] for name in ("BLOCK_M", "TILE_SIZE", "num_stages") if name in config}
            return [paged_launch(**constants), one_tensor_launch("copy_kernel")]
        return [one_tensor_launch(FUNCTIONS[config["KERNEL"]])]


FUNCTIONS = ("paged_kernel", "copy_kernel", "refused_kernel", "aborting_kernels:aborting_kernel", "hanging_kernel")
