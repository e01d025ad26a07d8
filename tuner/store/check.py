"""Prove that a table answers every size exactly once, and that its configurations can be launched.

Rows are boxes, so what they cover changes only at their corners: sweeping the finite set of corner coordinates proves
the claim for all sizes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ..arch import find_arch
from .boxes import merge_boxes
from .table import Box, ConfigRow, FamilyTable, RoutingRow, Table, TableError
from .yaml_text import Interval


def check_table(table: Table, path: str | os.PathLike[str] = "table") -> list[TableError]:
    """Everything wrong with a table, each fault with its line and field; an empty list is the proof.

    A hole is reported as the box of sizes to tune again, an overlap with the lines of both rows.
    """
    faults = []
    spec = find_arch(table.arch)
    if spec and spec.wave_size != table.wave_size:
        reason = f"{spec.name} has waves of {spec.wave_size}, not {table.wave_size}"
        faults.append(TableError(path, 0, "arch.wave_size", reason))
    return faults + [fault for family in table.families for fault in check_family(family, path)]


def check_family(table: FamilyTable, path: str | os.PathLike[str] = "table") -> list[TableError]:
    """Everything wrong with one family, as :func:`check_table`."""
    faults = [
        TableError(path, row.line, f"configs.{kernel}", reason)
        for kernel, rows in table.configs.items()
        for row in rows
        for reason in _config_faults(row, table.family.group_size)
    ]
    holes: dict[str, list[Box]] = {}
    overlaps: dict[str, set[tuple[int, int]]] = {}
    for field, found in _sweep(table):
        if isinstance(found, Box):
            holes.setdefault(field, []).append(found)
        else:
            overlaps.setdefault(field, set()).add(found)
    for field, pairs in overlaps.items():
        for first, second in sorted(pairs):
            faults.append(TableError(path, second, field, f"rows on lines {first} and {second} overlap"))
    for field, boxes in holes.items():
        for box, _ in merge_boxes((box, None) for box in boxes):
            faults.append(TableError(path, table.line, field, f"no row for {box} of {table.family}: tune these sizes"))
    return faults


def _sweep(table: FamilyTable) -> Iterator[tuple[str, Box | tuple[int, int]]]:
    """The field and the hole (a box) or overlap (two lines) of every elementary cell."""
    areas = [Box(row.max_seqlen_q, row.num_seqs) for row in table.routing]
    areas += [row.when for rows in table.configs.values() for row in rows]
    for q in _cells(area.max_seqlen_q for area in areas):
        routing_q = _containing(table.routing, "max_seqlen_q", q)
        configs_q = {k: [r for r in rows if _holds(r.when.max_seqlen_q, q)] for k, rows in table.configs.items()}
        for seqs in _cells(area.num_seqs for area in areas):
            routing = _containing(routing_q, "num_seqs", seqs)
            configs = {
                kernel: sorted((r for r in rows if _holds(r.when.num_seqs, seqs)), key=lambda r: r.when.max_seqlen_k)
                for kernel, rows in configs_q.items()
            }
            for kernel, rows in configs.items():
                for first, second in _overlapping(rows):
                    yield f"configs.{kernel}", (min(first.line, second.line), max(first.line, second.line))
            for other in routing[1:]:
                yield "routing", (routing[0].line, other.line)
            if not routing or min(routing[0].routes) > 1:
                end = min(routing[0].routes) - 1 if routing else math.inf
                yield "routing", Box(q, seqs, (1, end))
            for segment, kernel in routing[0].segments() if routing else ():
                for gap in _gaps(segment, [row.when.max_seqlen_k for row in configs.get(kernel, ())]):
                    yield f"configs.{kernel}", Box(q, seqs, gap)


def _cells(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals between neighbouring corners: a row covers all of one or none of it."""
    corners: set[float] = {1, math.inf}
    for low, high in intervals:
        corners |= {low, high + 1}
    ordered = sorted(corners)
    return [(int(low), high - 1) for low, high in pairwise(ordered)]


def _holds(interval: Interval, cell: Interval) -> bool:
    return interval[0] <= cell[0] <= interval[1]


def _containing(rows: Iterable[RoutingRow], axis: str, cell: Interval) -> list[RoutingRow]:
    return [row for row in rows if _holds(getattr(row, axis), cell)]


def _overlapping(rows: Sequence[ConfigRow]) -> Iterator[tuple[ConfigRow, ConfigRow]]:
    """Pairs of rows, sorted by max_seqlen_k, that share some of it."""
    for i, row in enumerate(rows[1:], start=1):
        for earlier in rows[:i]:
            if earlier.when.max_seqlen_k[1] >= row.when.max_seqlen_k[0]:
                yield earlier, row


def _gaps(segment: Interval, intervals: Iterable[Interval]) -> Iterator[Interval]:
    """The parts of a segment that sorted intervals leave uncovered."""
    start, end = segment
    for low, high in intervals:
        if start <= end and low > start:
            yield start, min(low - 1, end)
        if high == math.inf:
            return
        start = max(start, int(high) + 1)
    if start <= end:
        yield start, end


def _config_faults(row: ConfigRow, group_size: int) -> Iterator[str]:
    config = row.config
    if "NUM_PROGRAMS" in config and "NUM_SEGMENTS" in config:
        yield "NUM_PROGRAMS and NUM_SEGMENTS exclude each other"
    for name in ("BLOCK_M", "TILE_SIZE"):
        if "NUM_PROGRAMS" in config and name not in config:
            yield f"NUM_PROGRAMS needs {name}"
    for name in ("NUM_SEGMENTS", "NUM_PROGRAMS", "num_stages"):
        if config.get(name, 1) < 1:
            yield f"{name} must be 1 or more, not {config[name]}"
    for name in ("BLOCK_M", "TILE_SIZE", "num_warps"):
        value = config.get(name, 1)
        if value < 1 or value & (value - 1):
            yield f"{name} must be a power of two, not {value}"
    if config.get("BLOCK_M", group_size) < group_size:
        yield f"BLOCK_M must hold the {group_size} query heads of a KV head, not {config['BLOCK_M']}"
