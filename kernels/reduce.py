"""The reduce of the split route: combine the partial results of all KV segments."""

import triton
import triton.language as tl
from triton.language.extra import cuda

from .attend import LOG2E
from .query import write_output


@triton.jit(do_not_specialize=["num_segments", "num_seqs", "num_query_heads"])
def reduce_segments(
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    out_ptr,
    cu_seqlens_q_ptr,
    sinks_ptr,
    out_scale_ptr,
    num_query_heads,
    num_segments,
    num_seqs,
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    VALUE_SIZE: tl.constexpr,
    VALUE_SIZE_PADDED: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SEGMENTS: tl.constexpr,
    SINKS: tl.constexpr,
    OUT_SCALE: tl.constexpr,
    OVERLAP_REDUCE: tl.constexpr,
):
    """Combine the partials of one token and query head over a slice of the value dimension.

    Grid (num_query_heads * num_tokens, VALUE_SIZE_PADDED / BLOCK_D). Segments whose maximum is -inf weigh nothing;
    a token of which every segment is empty (a padding row) leaves the output as it was.
    """
    head = tl.program_id(0) % num_query_heads
    token = tl.program_id(0) // num_query_heads
    dim = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    first = (token.to(tl.int64) * num_query_heads + head) * num_segments
    if OVERLAP_REDUCE:  # launched while the attention kernel still runs: wait for its partials
        cuda.gdc_wait()
    num_tokens = tl.load(cu_seqlens_q_ptr + num_seqs)

    acc = tl.zeros([BLOCK_D], tl.float32)
    total = 0.0
    largest = float("-inf")
    for begin in tl.range(0, num_segments, BLOCK_SEGMENTS):
        # All loads of a step are independent, so that a short reduce waits for memory once; what an empty segment
        # left in the buffers is dropped afterwards.
        segment = begin + tl.arange(0, BLOCK_SEGMENTS)
        present = segment < num_segments
        segment_max = tl.load(partial_max_ptr + first + segment, mask=present, other=float("-inf"))
        segment_sum = tl.load(partial_sum_ptr + first + segment, mask=present, other=0.0)
        offsets = (first + segment)[:, None] * VALUE_SIZE_PADDED + dim[None, :]
        partial = tl.load(partial_ptr + offsets, mask=present[:, None], other=0.0)
        filled = segment_max > float("-inf")
        new_largest = tl.maximum(largest, tl.max(segment_max, axis=0))
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weight = tl.exp2(segment_max - base)
        rescale = tl.exp2(largest - base)
        total = total * rescale + tl.sum(tl.where(filled, weight * segment_sum, 0.0), axis=0)
        acc = acc * rescale + tl.sum(tl.where(filled[:, None], weight[:, None] * partial, 0.0), axis=0)
        largest = new_largest
    if SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E
        new_largest = tl.maximum(largest, sink)
        rescale = tl.exp2(largest - new_largest)
        total = total * rescale + tl.exp2(sink - new_largest)
        acc = acc * rescale
    offsets = token.to(tl.int64) * stride_out_token + head * stride_out_head + dim * stride_out_dim
    has_keys = (token < num_tokens) & (largest > float("-inf"))
    write_output(acc / total, out_ptr, offsets, dim < tl.where(has_keys, VALUE_SIZE, 0), out_scale_ptr, OUT_SCALE)
