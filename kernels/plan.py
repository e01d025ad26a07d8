"""From the tensors of a call and a configuration to Triton launches."""

from __future__ import annotations

from .inputs import AttentionInputs, Workspace, allocate_workspace
from .protocol import Config, Launch
from .routes import compile_options, padded_head_size, query_blocks, reduce_block

# Scaling fp16 probabilities by 2**14 keeps weights down to 2**-28 of a row's largest out of fp16's subnormals, and the
# largest, 2**14, under its limit. bf16 has fp32's range and needs no scaling.
FP16_PROBABILITY_BITS = 14


def plan_paged_attention(
    split: bool, inputs: AttentionInputs, config: Config, workspace: Workspace | None
) -> list[Launch]:
    """The attention launch and, when split over KV segments, the reduce that follows it."""
    problem = inputs.problem
    family = problem.family
    block_m = config["BLOCK_M"]
    num_segments = config["NUM_SEGMENTS"] if split else 1
    num_blocks, blocks_per_seq = query_blocks(problem, block_m)
    value_padded = padded_head_size(family.value_head_size)
    if not split:
        workspace = None
    elif workspace is None:
        workspace = allocate_workspace(
            inputs.q.shape[0], family.num_query_heads, num_segments, value_padded, inputs.q.device
        )
    kv_8bit = inputs.k.element_size() == 1
    fp16_products = kv_8bit or family.kv_dtype == "fp16"
    overlap = split and bool(config.get("OVERLAP_REDUCE", 0))
    token_scales = family.kv_scales == "per_token_head"
    k, v, q, out = inputs.k, inputs.v, inputs.q, inputs.out
    head_axis, slot_axis = (1, 3) if inputs.shuffled else (2, 1)
    scale_strides = inputs.k_scale.stride() if token_scales and inputs.k_scale is not None else (0, 0, 0)
    partials = {
        "partial_ptr": workspace.partial if workspace else None,
        "partial_max_ptr": workspace.partial_max if workspace else None,
        "partial_sum_ptr": workspace.partial_sum if workspace else None,
    }
    out_strides = {
        "stride_out_token": out.stride(0),
        "stride_out_head": out.stride(1),
        "stride_out_dim": out.stride(2),
    }
    # In the order of the kernel's parameters.
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "out_ptr": out,
        **partials,
        "block_table_ptr": inputs.block_table,
        "cu_seqlens_q_ptr": inputs.cu_seqlens_q,
        "seqused_k_ptr": inputs.seqused_k,
        "q_scale_ptr": inputs.q_scale,
        "k_scale_ptr": inputs.k_scale,
        "v_scale_ptr": inputs.v_scale,
        "out_scale_ptr": inputs.out_scale,
        "sinks_ptr": inputs.sinks,
        "alibi_slopes_ptr": inputs.alibi_slopes,
        "qq_bias_ptr": inputs.qq_bias,
        "softmax_scale": float(inputs.softmax_scale),
        "softcap": float(inputs.softcap),
        "num_kv_heads": family.num_kv_heads,
        "num_seqs": problem.num_seqs,
        "blocks_per_seq": blocks_per_seq,
        "num_blocks": num_blocks,
        "num_segments": num_segments,
        "qq_bias_len": inputs.qq_bias.shape[1] if inputs.qq_bias is not None else 0,
        "stride_q_token": q.stride(0),
        "stride_q_head": q.stride(1),
        "stride_q_dim": q.stride(2),
        "stride_k_page": k.stride(0),
        "stride_k_slot": k.stride(slot_axis),
        "stride_k_head": k.stride(head_axis),
        "stride_k_dim": k.stride(-1),
        "stride_v_page": v.stride(0),
        "stride_v_slot": 0 if inputs.shuffled else v.stride(1),
        "stride_v_head": v.stride(head_axis),
        "stride_v_dim": v.stride(-1),
        "stride_scale_page": scale_strides[0],
        "stride_scale_slot": scale_strides[2],
        "stride_scale_head": scale_strides[1],
        **out_strides,
        "stride_block_table": inputs.block_table.stride(0),
        "stride_qq_bias": inputs.qq_bias.stride(0) if inputs.qq_bias is not None else 0,
    }
    constants = {
        "GROUP_SIZE": family.group_size,
        "HEAD_SIZE": family.head_size,
        "HEAD_SIZE_PADDED": padded_head_size(family.head_size),
        "VALUE_SIZE": family.value_head_size,
        "VALUE_SIZE_PADDED": value_padded,
        "PAGE_SIZE": family.page_size,
        "BLOCK_M": block_m,
        "TILE_SIZE": config["TILE_SIZE"],
        "KV_8BIT": kv_8bit,
        "TENSOR_SCALES": family.kv_scales == "per_tensor",
        "TOKEN_SCALES": token_scales,
        "QUERY_SCALE": inputs.q_scale is not None,
        "SHUFFLE": 16 // k.element_size() if inputs.shuffled else 0,
        "WINDOW": family.sliding_window,
        "CAUSAL": family.causal,
        "SOFTCAP": family.softcap,
        "SINKS": family.sinks,
        "ALIBI": family.alibi,
        "QQ_BIAS": family.qq_bias,
        "OUT_SCALE": inputs.out_scale is not None,
        "QUERY_TERMS": config.get("QUERY_TERMS", 0),
        "PROBABILITY_BITS": FP16_PROBABILITY_BITS if fp16_products else 0,
        # A second loop restarts the software pipeline: worth it only where a program has many whole tiles.
        "SEPARATE_MASKED_TILES": not split and not family.sliding_window and block_m // family.group_size >= 8,
        "SPLIT": split,
        "KEYS_FIRST": bool(config.get("KEYS_FIRST", 0)),
        "OVERLAP_REDUCE": overlap,
    }
    grid = (family.num_kv_heads * num_blocks, num_segments, 1)
    launches = [Launch("attn_tune.kernels.paged:paged_attention", grid, arguments, constants, compile_options(config))]
    if split:
        block_segments, block_d = reduce_block(num_segments, value_padded)
        arguments = {
            **partials,
            "out_ptr": out,
            "cu_seqlens_q_ptr": inputs.cu_seqlens_q,
            "sinks_ptr": inputs.sinks,
            "out_scale_ptr": inputs.out_scale,
            "num_query_heads": family.num_query_heads,
            "num_segments": num_segments,
            "num_seqs": problem.num_seqs,
            **out_strides,
        }
        constants = {
            "VALUE_SIZE": family.value_head_size,
            "VALUE_SIZE_PADDED": value_padded,
            "BLOCK_D": block_d,
            "BLOCK_SEGMENTS": block_segments,
            "SINKS": family.sinks,
            "OUT_SCALE": inputs.out_scale is not None,
            "OVERLAP_REDUCE": overlap,
        }
        options = compile_options({"num_warps": 4, "num_stages": 1}) | ({"launch_pdl": 1} if overlap else {})
        grid = (family.num_query_heads * inputs.q.shape[0], value_padded // block_d, 1)
        launches.append(Launch("attn_tune.kernels.reduce:reduce_segments", grid, arguments, constants, options))
    return launches
