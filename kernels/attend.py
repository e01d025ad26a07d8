"""The loop over KV tiles that both routes share: online softmax in base 2.

Two choices keep 16-bit matrix products exact enough. An 8-bit cache is converted to fp16, which holds e4m3 and int8
exactly and converts cheaply; the query is scaled by a power of two per row so that fp16 holds it too. And
probabilities are scaled by 2**PROBABILITY_BITS, so that the small ones of a long context stay out of fp16's subnormals.
"""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def matrix_product(a, b, acc, DTYPE: tl.constexpr):
    """``acc + a @ b`` with operands of DTYPE, summed in fp32.

    Triton's interpreter multiplies bf16 operands as integers and rounds to bf16 badly: there, they become fp32.
    """
    if INTERPRETED and tl.bfloat16 == DTYPE:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a.to(DTYPE), b.to(DTYPE), acc)


@triton.jit
def attend_tiles(
    acc,
    row_max,
    row_sum,
    v_reference,
    query,
    query_low,
    row_scale,
    position,
    tile_begin,
    tile_end,
    key_begin,
    key_end,
    context_len,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    block_table_ptr,
    stride_k_page,
    stride_k_slot,
    stride_k_dim,
    stride_v_page,
    stride_v_slot,
    stride_v_dim,
    stride_scale_page,
    stride_scale_slot,
    softcap,
    alibi_slope,
    qq_bias_rows,
    qq_bias_len,
    PAGE_SIZE: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_SIZE_PADDED: tl.constexpr,
    KV_8BIT: tl.constexpr,
    TOKEN_SCALES: tl.constexpr,
    SHUFFLE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ALIBI: tl.constexpr,
    QQ_BIAS: tl.constexpr,
    QUERY_TERMS: tl.constexpr,
    PROBABILITY_BITS: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Attend to tiles [tile_begin, tile_end) of one sequence and one KV head; returns the new softmax state.

    State: ``acc`` [BLOCK_M, VALUE_SIZE_PADDED], ``row_max`` and ``row_sum`` [BLOCK_M] in base 2, and ``v_reference``,
    the largest V scale so far, in whose unit ``acc`` is kept so that scaled probabilities stay within 16 bits.
    ``row_scale`` turns a product into a base-2 logit (into a natural one before a softcap). With MASKED false the
    caller promises that every query sees every key of these tiles.
    """
    dim = tl.arange(0, HEAD_SIZE_PADDED)
    value_dim = tl.arange(0, VALUE_SIZE_PADDED)
    lane = tl.arange(0, TILE_SIZE)
    compute_dtype: tl.constexpr = tl.float16 if KV_8BIT else k_ptr.dtype.element_ty
    one_page: tl.constexpr = PAGE_SIZE % TILE_SIZE == 0
    whole_pages: tl.constexpr = TILE_SIZE % PAGE_SIZE == 0

    for tile in tl.range(tile_begin, tile_end):
        start = tile * TILE_SIZE
        key = start + lane
        present = key < key_end
        if MASKED:
            if WINDOW > 0:  # pages before the window may have been given away
                present = present & (key >= key_begin)
        if one_page:
            page = tl.load(block_table_ptr + start // PAGE_SIZE).to(tl.int64)
            slot = start % PAGE_SIZE + lane
            k_offset = page * stride_k_page + slot * stride_k_slot
            v_offset = page * stride_v_page + lane * 0
        else:
            if whole_pages:
                page_pointers = block_table_ptr + tile * (TILE_SIZE // PAGE_SIZE) + lane // PAGE_SIZE
                slot = lane % PAGE_SIZE
            else:
                page_pointers = block_table_ptr + key // PAGE_SIZE
                slot = key % PAGE_SIZE
            if MASKED:
                page = tl.load(page_pointers, mask=present, other=0).to(tl.int64)
            else:
                page = tl.load(page_pointers).to(tl.int64)
            k_offset = page * stride_k_page + slot * stride_k_slot
            v_offset = page * stride_v_page

        if SHUFFLE > 0:  # K [.., D / SHUFFLE, page, SHUFFLE], V [.., page / SHUFFLE, D, SHUFFLE]
            k_dim_offset = (dim // SHUFFLE) * (PAGE_SIZE * SHUFFLE) + dim % SHUFFLE
            v_offset += (slot // SHUFFLE) * (VALUE_SIZE * SHUFFLE) + slot % SHUFFLE
            v_dim_offset = value_dim * SHUFFLE
        else:
            k_dim_offset = dim * stride_k_dim
            v_offset += slot * stride_v_slot
            v_dim_offset = value_dim * stride_v_dim
        if KEYS_FIRST:
            k_pointers = k_ptr + k_offset[:, None] + k_dim_offset[None, :]
            k_mask = present[:, None] & (dim[None, :] < HEAD_SIZE)
        else:
            k_pointers = k_ptr + k_offset[None, :] + k_dim_offset[:, None]
            k_mask = present[None, :] & (dim[:, None] < HEAD_SIZE)
        v_pointers = v_ptr + v_offset[:, None] + v_dim_offset[None, :]

        v_mask = present[:, None] & (value_dim[None, :] < VALUE_SIZE)
        if MASKED or HEAD_SIZE != HEAD_SIZE_PADDED:
            k = tl.load(k_pointers, mask=k_mask, other=0.0)
        else:
            k = tl.load(k_pointers)
        if MASKED or VALUE_SIZE != VALUE_SIZE_PADDED:
            v = tl.load(v_pointers, mask=v_mask, other=0.0)
        else:
            v = tl.load(v_pointers)

        if KEYS_FIRST:
            keys = tl.trans(k)
        else:
            keys = k
        zero = tl.zeros([row_scale.shape[0], TILE_SIZE], tl.float32)
        if QUERY_TERMS == 2:
            logits = matrix_product(query_low, keys, zero, k.dtype) * (1.0 / 16.0)
            logits = matrix_product(query, keys, logits, k.dtype)
        elif QUERY_TERMS == 1:
            logits = matrix_product(query, keys, zero, k.dtype)
        else:
            logits = matrix_product(query, keys, zero, compute_dtype)

        logits = logits * row_scale[:, None]
        if TOKEN_SCALES:
            scale_offset = page * stride_scale_page + slot * stride_scale_slot
            if MASKED:
                k_scale = tl.load(k_scale_ptr + scale_offset, mask=present, other=0.0)
                v_scale = tl.load(v_scale_ptr + scale_offset, mask=present, other=0.0)
            else:
                k_scale = tl.load(k_scale_ptr + scale_offset)
                v_scale = tl.load(v_scale_ptr + scale_offset)
            logits = logits * k_scale[None, :]
        if SOFTCAP:  # softcap * tanh(x / softcap), written so that no exponential overflows to NaN
            logits = softcap * (1.0 - 2.0 / (tl.exp2(logits * (2.0 * LOG2E / softcap)) + 1.0))
        if ALIBI:
            logits += alibi_slope[:, None] * (key - context_len)[None, :]
        if QQ_BIAS:
            relative = key - context_len
            among_queries = (relative >= 0) & (relative < qq_bias_len)
            logits += tl.load(qq_bias_rows[:, None] + relative[None, :], mask=among_queries[None, :], other=0.0)
        if SOFTCAP or ALIBI or QQ_BIAS:
            logits = logits * LOG2E
        if MASKED:
            if CAUSAL:
                visible = key[None, :] <= position[:, None]
                if WINDOW > 0:
                    visible = visible & (position[:, None] - key[None, :] < WINDOW)
            else:
                visible = present[None, :]
            logits = tl.where(visible, logits, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(logits, axis=1) - PROBABILITY_BITS)
        base = new_max
        if MASKED:  # a row that has seen no key yet: avoid -inf minus -inf
            base = tl.where(new_max == float("-inf"), 0.0, new_max)
        probability = tl.exp2(logits - base[:, None])
        rescale = tl.exp2(row_max - base)
        row_sum = row_sum * rescale + tl.sum(probability, axis=1)
        row_max = new_max
        if TOKEN_SCALES:
            new_reference = tl.maximum(v_reference, tl.max(v_scale, axis=0))
            probability = probability * (v_scale * (1.0 / new_reference))[None, :]
            rescale = rescale * (v_reference / new_reference)
            v_reference = new_reference
        acc = acc * rescale[:, None]
        acc = matrix_product(probability, v, acc, compute_dtype)
    return acc, row_max, row_sum, v_reference
