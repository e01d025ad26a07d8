"""From points of a grid to boxes that cover all sizes, and from many boxes to few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from .table import Box
from .yaml_text import Interval

V = TypeVar("V")


def intervals(values: Sequence[int], below: float) -> list[Interval]:
    """The integers that belong to each value, the first from 1 and the last open.

    ``values`` are distinct, positive and sorted. Of the way from one to the next, in log space, the first ``below``
    belongs to the lower: with 0 everything is rounded up, with 0.5 everything belongs to the nearest value.
    """
    ends: list[float] = [int(low * (high / low) ** below + 1e-9) for low, high in pairwise(values)]
    starts = [1, *(int(end) + 1 for end in ends)]
    return list(zip(starts, [*ends, math.inf], strict=True))


def merge_boxes(rows: Iterable[tuple[Box, V]]) -> list[tuple[Box, V]]:
    """Join neighbouring boxes of equal value along max_seqlen_k, then num_seqs, then max_seqlen_q; sorted.

    The boxes must not overlap; what they cover stays the same.
    """
    merged = list(rows)
    for axis in ("max_seqlen_k", "num_seqs", "max_seqlen_q"):
        merged = _merge_axis(merged, axis)
    return sorted(merged, key=lambda row: row[0])


def _merge_axis(rows: Iterable[tuple[Box, V]], axis: str) -> list[tuple[Box, V]]:
    columns: dict[Box, list[tuple[Box, V]]] = {}
    for box, value in rows:
        columns.setdefault(replace(box, **{axis: (1, math.inf)}), []).append((box, value))
    merged: list[tuple[Box, V]] = []
    for column in columns.values():
        column.sort(key=lambda row: row[0])
        current, current_value = column[0]
        for box, value in column[1:]:
            (low, end), (start, high) = getattr(current, axis), getattr(box, axis)
            if value == current_value and end + 1 == start:
                current = replace(current, **{axis: (low, high)})
            else:
                merged.append((current, current_value))
                current, current_value = box, value
        merged.append((current, current_value))
    return merged
