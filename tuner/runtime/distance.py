"""How far apart two families are as far as tuning goes."""

from __future__ import annotations

from math import log2

from ..kernels.lds import min_block_m
from ..kernels.routes import padded_head_size
from ..problem import DTYPE_BYTES, AttentionFamily

MAX_DISTANCE = 8.0
"""Families further apart than this do not answer for each other."""


def family_distance(first: AttentionFamily, second: AttentionFamily) -> float | None:
    """How far apart two families are; None when one's configs cannot serve the other.

    A doubling of the head size counts 4, of the group 2, of the page size 0.5; another KV dtype of the same width or
    another kind of scale 1; a flag or a window on one side only 1. Heads as such do not count: they scale num_seqs.
    """
    if min_block_m(first) != min_block_m(second) or DTYPE_BYTES[first.kv_dtype] != DTYPE_BYTES[second.kv_dtype]:
        return None
    if first.kv_layout != second.kv_layout or DTYPE_BYTES[first.q_dtype] != DTYPE_BYTES[second.q_dtype]:
        return None
    distance = 4 * abs(log2(padded_head_size(first.head_size) / padded_head_size(second.head_size)))
    distance += 4 * abs(log2(padded_head_size(first.value_head_size) / padded_head_size(second.value_head_size)))
    distance += 2 * abs(log2(first.group_size / second.group_size))
    distance += 0.5 * abs(log2(first.page_size / second.page_size))
    for name in ("kv_dtype", "q_dtype", "kv_scales", "causal", "sinks", "softcap", "alibi", "qq_bias"):
        distance += getattr(first, name) != getattr(second, name)
    distance += bool(first.sliding_window) != bool(second.sliding_window)
    if first.sliding_window and second.sliding_window:
        distance += 0.5 * abs(log2(first.sliding_window / second.sliding_window))
    # Equal in all that counts, but not the same family: still not exact.
    return distance if first == second else max(distance, 0.1)
