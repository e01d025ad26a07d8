"""The kernel that `attn-tune doctor` compiles: one matrix product, the least that attention needs of a compiler."""

import triton
import triton.language as tl


@triton.jit
def multiply(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    """``out = a @ b``, each [BLOCK, BLOCK] and contiguous."""
    index = tl.arange(0, BLOCK)
    offsets = index[:, None] * BLOCK + index[None, :]
    tl.store(out_ptr + offsets, tl.dot(tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)))
