"""Device code for one query block: where it is, which keys it sees, its rows in, its rows out.

A block holds ``BLOCK_Q = BLOCK_M // GROUP_SIZE`` query positions of one sequence and all the query heads of one KV
head, so that each KV tile is read once for all of them.
"""

import triton
import triton.language as tl

from .attend import INTERPRETED


@triton.jit
def locate_query_block(block, cu_seqlens_q_ptr, seqused_k_ptr, num_seqs, blocks_per_seq, BLOCK_Q: tl.constexpr):
    """The sequence of a query block, and where the block lies in it.

    With ``blocks_per_seq`` every sequence has that many blocks; with 0 the blocks are packed: sequence ``s`` starts at
    block ``cu_seqlens_q[s] // BLOCK_Q + s``, which leaves it enough of them, and a bisection finds ``s``.
    Returns (first token of the sequence, its query length, its key length, the block's first query in the sequence).
    """
    if blocks_per_seq > 0:
        seq = block // blocks_per_seq
        first_query = (block % blocks_per_seq) * BLOCK_Q
    else:
        low = 0
        high = num_seqs
        while high - low > 1:
            middle = (low + high) // 2
            if tl.load(cu_seqlens_q_ptr + middle) // BLOCK_Q + middle > block:
                high = middle
            else:
                low = middle
        seq = low
        first_query = (block - (tl.load(cu_seqlens_q_ptr + low) // BLOCK_Q + low)) * BLOCK_Q
    seq_start = tl.load(cu_seqlens_q_ptr + seq)
    query_len = tl.load(cu_seqlens_q_ptr + seq + 1) - seq_start
    seq_len = tl.load(seqused_k_ptr + seq)
    return seq, seq_start, query_len, seq_len, first_query


@triton.jit
def visible_tiles(
    first_query,
    query_len,
    seq_len,
    BLOCK_Q: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The keys that a query block sees: [key_begin, key_end), and the tiles that hold them.

    Returns (key_begin, key_end, first tile, end tile, end of the tiles that every query of the block sees whole).
    """
    context_len = seq_len - query_len
    if CAUSAL:
        key_end = tl.minimum(context_len + first_query + BLOCK_Q, seq_len)
        whole_end = (context_len + first_query + 1) // TILE_SIZE
    else:
        key_end = seq_len
        whole_end = seq_len // TILE_SIZE
    key_begin = 0
    if WINDOW > 0:
        key_begin = tl.maximum(context_len + first_query - WINDOW + 1, 0)
    return key_begin, key_end, key_begin // TILE_SIZE, tl.cdiv(key_end, TILE_SIZE), whole_end


@triton.jit
def four_significant_bits(x):
    """fp32 values rounded to e4m3's precision (ties away from zero), so that the conversion that follows is exact."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x80000) & ~0xFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def load_query(
    q_ptr,
    token,
    head,
    row_mask,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    KV_8BIT: tl.constexpr,
    QUERY_TERMS: tl.constexpr,
):
    """The query rows as matrix operands: (high, low, row_scale) with query = (high + low) * row_scale.

    ``low`` repeats ``high`` unless QUERY_TERMS is 2: then the two are e4m3 terms (``low`` holds 16 times its value),
    whose products run on fp8 matrix units without converting the cache. With 1 an e4m3 query is used as it is.
    """
    dim = tl.arange(0, HEAD_SIZE_PADDED)
    offsets = token[:, None].to(tl.int64) * stride_q_token + head[:, None] * stride_q_head + dim[None, :] * stride_q_dim
    mask = row_mask[:, None]
    if HEAD_SIZE != HEAD_SIZE_PADDED:
        mask = mask & (dim[None, :] < HEAD_SIZE)
    query = tl.load(q_ptr + offsets, mask=mask, other=0.0)
    high = query
    low = query
    row_scale = tl.full([token.shape[0]], 1.0, tl.float32)
    if KV_8BIT and QUERY_TERMS != 1:
        wide = query.to(tl.float32)
        largest = tl.max(tl.abs(wide), axis=1)
        exponent = tl.ceil(tl.log2(tl.where(largest > 0, largest, 1.0)))
        wide = wide * tl.exp2(-exponent)[:, None]
        row_scale = tl.exp2(exponent)
        if QUERY_TERMS == 2:
            wide = wide * 256.0
            row_scale = row_scale * (1.0 / 256.0)
            leading = four_significant_bits(wide)
            high = leading.to(tl.float8e4nv)
            low = four_significant_bits((wide - leading) * 16.0).to(tl.float8e4nv)
        else:
            high = wide.to(tl.float16)
            low = high
    return high, low, row_scale


@triton.jit
def write_output(acc, out_ptr, offsets, mask, out_scale_ptr, OUT_SCALE: tl.constexpr):
    """Store finished rows in the output's dtype; an fp8 output is divided by its scale and clamped to e4m3's range."""
    if OUT_SCALE:
        acc = tl.clamp(acc / tl.load(out_scale_ptr), -448.0, 448.0)
        if INTERPRETED:  # Triton's interpreter loses the carry of a rounding to e4m3
            acc = four_significant_bits(acc)
    tl.store(out_ptr + offsets, acc.to(out_ptr.dtype.element_ty), mask=mask)
