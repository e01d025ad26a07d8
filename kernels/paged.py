"""The two attention kernels: one program per query block (2D), or one per query block and KV segment (3D)."""

import triton
import triton.language as tl
from triton.language.extra import cuda

from .attend import LOG2E, attend_tiles
from .query import load_query, locate_query_block, visible_tiles, write_output

# Sizes that change from call to call are not specialised, so that one compilation serves them all.
_UNSPECIALISED = [
    "num_kv_heads",
    "num_seqs",
    "blocks_per_seq",
    "num_blocks",
    "num_segments",
    "qq_bias_len",
    "stride_block_table",
    "stride_qq_bias",
]


@triton.jit(do_not_specialize=_UNSPECIALISED)
def paged_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    partial_ptr,
    partial_max_ptr,
    partial_sum_ptr,
    block_table_ptr,
    cu_seqlens_q_ptr,
    seqused_k_ptr,
    q_scale_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_scale_ptr,
    sinks_ptr,
    alibi_slopes_ptr,
    qq_bias_ptr,
    softmax_scale,
    softcap,
    num_kv_heads,
    num_seqs,
    blocks_per_seq,
    num_blocks,
    num_segments,
    qq_bias_len,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    stride_k_page,
    stride_k_slot,
    stride_k_head,
    stride_k_dim,
    stride_v_page,
    stride_v_slot,
    stride_v_head,
    stride_v_dim,
    stride_scale_page,
    stride_scale_slot,
    stride_scale_head,
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    stride_block_table,
    stride_qq_bias,
    GROUP_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_SIZE_PADDED: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    KV_8BIT: tl.constexpr,
    TENSOR_SCALES: tl.constexpr,
    TOKEN_SCALES: tl.constexpr,
    QUERY_SCALE: tl.constexpr,
    SHUFFLE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    ALIBI: tl.constexpr,
    QQ_BIAS: tl.constexpr,
    OUT_SCALE: tl.constexpr,
    QUERY_TERMS: tl.constexpr,
    PROBABILITY_BITS: tl.constexpr,
    SEPARATE_MASKED_TILES: tl.constexpr,
    SPLIT: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    OVERLAP_REDUCE: tl.constexpr,
):
    """Paged attention of one query block and one KV head.

    Grid (num_kv_heads * num_blocks, num_segments), since only the first axis of a grid may be long. Without SPLIT the
    result goes to ``out``. With it, each segment of the block's tiles writes an unnormalised partial [token, head,
    segment, VALUE_SIZE_PADDED] with its row maximum and sum, for the reduce; a segment without keys writes the maximum
    -inf alone.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP_SIZE
    if OVERLAP_REDUCE:
        cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0) % num_kv_heads
    # The last blocks of a causal prompt see the most keys: start them first, so that the grid ends evenly.
    block = num_blocks - 1 - tl.program_id(0) // num_kv_heads
    segment = tl.program_id(1)

    seq, seq_start, query_len, seq_len, first_query = locate_query_block(
        block, cu_seqlens_q_ptr, seqused_k_ptr, num_seqs, blocks_per_seq, BLOCK_Q
    )
    if first_query >= query_len:
        return
    if seq_len <= 0:
        if not SPLIT:
            return

    row = tl.arange(0, BLOCK_M)
    query_index = first_query + row // GROUP_SIZE
    row_mask = (row < BLOCK_Q * GROUP_SIZE) & (query_index < query_len)
    token = seq_start + query_index
    head = kv_head * GROUP_SIZE + row % GROUP_SIZE
    context_len = seq_len - query_len
    position = context_len + query_index

    key_begin, key_end, tile_begin, tile_end, whole_end = visible_tiles(
        first_query, query_len, seq_len, BLOCK_Q, TILE_SIZE, WINDOW, CAUSAL
    )
    num_query_heads = num_kv_heads * GROUP_SIZE
    partial_row = (token.to(tl.int64) * num_query_heads + head) * num_segments + segment
    if SPLIT:
        tiles_per_segment = tl.cdiv(tile_end - tile_begin, num_segments)
        tile_begin = tile_begin + segment * tiles_per_segment
        tile_end = tl.minimum(tile_begin + tiles_per_segment, tile_end)
        if tile_begin >= tile_end:
            tl.store(partial_max_ptr + partial_row, tl.full([BLOCK_M], float("-inf"), tl.float32), mask=row_mask)
            return

    query, query_low, row_scale = load_query(
        q_ptr,
        token,
        head,
        row_mask,
        stride_q_token,
        stride_q_head,
        stride_q_dim,
        HEAD_SIZE,
        HEAD_SIZE_PADDED,
        KV_8BIT,
        QUERY_TERMS,
    )
    row_scale = row_scale * softmax_scale
    if QUERY_SCALE:
        row_scale = row_scale * tl.load(q_scale_ptr)
    if TENSOR_SCALES:
        row_scale = row_scale * tl.load(k_scale_ptr)
    if not (SOFTCAP or ALIBI or QQ_BIAS):
        row_scale = row_scale * LOG2E

    acc = tl.zeros([BLOCK_M, VALUE_SIZE_PADDED], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if SINKS and not SPLIT:
        row_max = tl.load(sinks_ptr + head, mask=row_mask, other=0.0).to(tl.float32) * LOG2E
        row_sum = tl.full([BLOCK_M], 1.0, tl.float32)
    v_reference = 1e-30
    alibi_slope = row_scale
    if ALIBI:
        alibi_slope = tl.load(alibi_slopes_ptr + head, mask=row_mask, other=0.0).to(tl.float32)
    qq_bias_rows = qq_bias_ptr
    if QQ_BIAS:
        qq_bias_rows = qq_bias_ptr + tl.where(row_mask, query_index, 0) * stride_qq_bias

    kv_head64 = kv_head.to(tl.int64)
    k_head_ptr = k_ptr + kv_head64 * stride_k_head
    v_head_ptr = v_ptr + kv_head64 * stride_v_head
    k_scale_head_ptr = k_scale_ptr
    v_scale_head_ptr = v_scale_ptr
    if TOKEN_SCALES:
        k_scale_head_ptr = k_scale_ptr + kv_head64 * stride_scale_head
        v_scale_head_ptr = v_scale_ptr + kv_head64 * stride_scale_head
    pages_ptr = block_table_ptr + seq.to(tl.int64) * stride_block_table

    masked_begin = tile_begin
    if SEPARATE_MASKED_TILES:
        masked_begin = tl.minimum(tl.maximum(whole_end, tile_begin), tile_end)
        acc, row_max, row_sum, v_reference = attend_tiles(
            acc, row_max, row_sum, v_reference, query, query_low, row_scale, position,
            tile_begin, masked_begin, key_begin, key_end, context_len,
            k_head_ptr, v_head_ptr, k_scale_head_ptr, v_scale_head_ptr, pages_ptr,
            stride_k_page, stride_k_slot, stride_k_dim, stride_v_page, stride_v_slot, stride_v_dim,
            stride_scale_page, stride_scale_slot, softcap, alibi_slope, qq_bias_rows, qq_bias_len,
            PAGE_SIZE, TILE_SIZE, HEAD_SIZE, HEAD_SIZE_PADDED, VALUE_SIZE, VALUE_SIZE_PADDED,
            KV_8BIT, TOKEN_SCALES, SHUFFLE, WINDOW, CAUSAL, SOFTCAP, ALIBI, QQ_BIAS, QUERY_TERMS, PROBABILITY_BITS,
            KEYS_FIRST, False,
        )  # fmt: skip
    acc, row_max, row_sum, v_reference = attend_tiles(
        acc, row_max, row_sum, v_reference, query, query_low, row_scale, position,
        masked_begin, tile_end, key_begin, key_end, context_len,
        k_head_ptr, v_head_ptr, k_scale_head_ptr, v_scale_head_ptr, pages_ptr,
        stride_k_page, stride_k_slot, stride_k_dim, stride_v_page, stride_v_slot, stride_v_dim,
        stride_scale_page, stride_scale_slot, softcap, alibi_slope, qq_bias_rows, qq_bias_len,
        PAGE_SIZE, TILE_SIZE, HEAD_SIZE, HEAD_SIZE_PADDED, VALUE_SIZE, VALUE_SIZE_PADDED,
        KV_8BIT, TOKEN_SCALES, SHUFFLE, WINDOW, CAUSAL, SOFTCAP, ALIBI, QQ_BIAS, QUERY_TERMS, PROBABILITY_BITS,
        KEYS_FIRST, True,
    )  # fmt: skip

    if TOKEN_SCALES:
        acc = acc * v_reference
    if TENSOR_SCALES:
        acc = acc * tl.load(v_scale_ptr)
    value_dim = tl.arange(0, VALUE_SIZE_PADDED)
    if SPLIT:
        offsets = partial_row[:, None] * VALUE_SIZE_PADDED + value_dim[None, :]
        tl.store(partial_ptr + offsets, acc, mask=row_mask[:, None])
        tl.store(partial_max_ptr + partial_row, row_max, mask=row_mask)
        tl.store(partial_sum_ptr + partial_row, row_sum, mask=row_mask)
    else:
        acc = acc / row_sum[:, None]
        offsets = token[:, None].to(tl.int64) * stride_out_token + head[:, None] * stride_out_head
        offsets += value_dim[None, :] * stride_out_dim
        mask = row_mask[:, None]
        if VALUE_SIZE != VALUE_SIZE_PADDED:
            mask = mask & (value_dim[None, :] < VALUE_SIZE)
        write_output(acc, out_ptr, offsets, mask, out_scale_ptr, OUT_SCALE)
