"""How one family is answered on one device: exact table, nearest family, or rule; made once, then only read."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import log2

from ..arch import ArchSpec, canonical_arch, find_arch
from ..baselines import default_choice
from ..device import local_device
from ..kernels import get_kernel
from ..kernels.lds import fits_lds, min_block_m, min_tile_size
from ..kernels.routes import padded_head_size
from ..problem import DTYPE_BYTES, AttentionFamily, AttentionProblem
from ..store.load import LazyTable, open_table
from ..store.overlay import prefer, table_paths
from ..store.table import FamilyTable, TableError
from .answer import Answer

MAX_DISTANCE = 8.0
"""Families further apart than this (see :func:`family_distance`) do not answer for each other."""

_MAX_REMEMBERED = 4096  # rule answers kept per family


@dataclass(frozen=True)
class Plan:
    """Answers of one family on one device. ``find`` costs two dictionary reads and three bisections."""

    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # where boxes start, per size
    make: Callable[[tuple[int, int, int]], Answer]
    cells: dict[tuple[int, int, int], Answer] = field(default_factory=dict)

    def find(self, num_seqs: int, max_seqlen_q: int, max_seqlen_k: int) -> Answer:
        """The answer at some sizes. Threads may race to fill a cell: both write the same answer."""
        seqs, queries, keys = self.axes
        cell = (bisect_right(seqs, num_seqs), bisect_right(queries, max_seqlen_q), bisect_right(keys, max_seqlen_k))
        answer = self.cells.get(cell)
        if answer is None:
            answer = self.cells[cell] = self.make((num_seqs, max_seqlen_q, max_seqlen_k))
        return answer


@dataclass(frozen=True)
class RulePlan:
    """Answers of the default rule, which looks at exact sizes; the latest ones are remembered."""

    make: Callable[[tuple[int, int, int]], Answer]
    answers: dict[tuple[int, int, int], Answer] = field(default_factory=dict)

    def find(self, num_seqs: int, max_seqlen_q: int, max_seqlen_k: int) -> Answer:
        """The answer at some sizes."""
        sizes = (num_seqs, max_seqlen_q, max_seqlen_k)
        answer = self.answers.get(sizes)
        if answer is None:
            if len(self.answers) >= _MAX_REMEMBERED:
                self.answers.clear()
            answer = self.answers[sizes] = self.make(sizes)
        return answer


def make_plan(arch: str | None, family: AttentionFamily) -> Plan | RulePlan:
    """Find out how to answer for a family: reads the tables, and warns once when the answer is only a fallback."""
    name, compute_units, chain = _device(arch)
    spec = find_arch(name)
    tables, faults = _open_tables(name)
    chain = (*chain, *faults)
    found = _exact(tables, family) or (_nearest(tables, family, spec) if spec else None)
    if found is None:
        where = ", ".join(str(table.path) for table in tables) or f"no table for {name}"
        _warn(f"no tuned config for {family} on {name} ({where}): answering by the default rule")
        return RulePlan(_rule_answer(family, spec, (*chain, f"no table knows {family} or a family near it ({where})")))
    table, rows, distance = found
    # The same programs per unit load a device alike: more KV heads, or fewer units, count like more sequences.
    scale = (
        family.num_kv_heads / rows.family.num_kv_heads * table.compute_units / (compute_units or table.compute_units)
    )
    source = "exact" if distance == 0 and scale == 1 else "nearest"
    chain = (*chain, f"table {table.path}, built with Triton {table.built_with.get('triton', '?')}")
    if distance:
        chain = (*chain, f"{family} is not in it; nearest is {rows.family} (distance {distance:.1f})")
        _warn(f"no tuned config for {family} on {name}: answering with that of {rows.family}")
    else:
        chain = (*chain, f"family {family}")
    if scale != 1:
        chain = (*chain, f"num_seqs counts {scale:g} times: {family.num_kv_heads} KV heads on {compute_units} units")

    rule = _rule_answer(family, spec, chain)

    def make(sizes: tuple[int, int, int]) -> Answer:
        scaled = (max(round(sizes[0] * scale), 1), *sizes[1:])
        route, row = rows.find(scaled)
        kernel = get_kernel(route)
        if spec is None or kernel.supports(family, spec) or not _launchable(row.config, family, spec, source):
            return rule(sizes)
        us = row.us[1] if row.us else None
        steps = (*chain, f"routing -> {route}", f"row {row.when}, line {row.line}, {row.evidence}")
        return Answer(route, kernel.complete(row.config, spec), source, row.evidence, us, steps, table.built_with)

    return Plan(_axes(rows, scale), make)


def family_distance(first: AttentionFamily, second: AttentionFamily) -> float | None:
    """How far apart two families are as far as tuning goes; None when one's configs cannot serve the other.

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


def _device(arch: str | None) -> tuple[str, int | None, tuple[str, ...]]:
    """(arch name, its compute units if the local device says so, the first steps of the chain)."""
    if arch is not None:
        return canonical_arch(arch), None, (f"arch {canonical_arch(arch)}",)
    device = local_device()
    if device is None:
        _warn("no GPU found and no arch given: answering by the default rule")
        return "unknown", None, ("no arch given, and no GPU found",)
    return device.arch, device.compute_units, (f"arch {device.arch}: {device.name}, {device.compute_units} units",)


def _open_tables(name: str) -> tuple[list[LazyTable], list[str]]:
    tables, faults = [], []
    for path in table_paths(name):
        try:
            tables.append(open_table(path))
        except FileNotFoundError:
            continue
        except (TableError, OSError) as error:
            _warn(f"ignoring a table: {error}")
            faults.append(f"ignored: {error}")
    return tables, faults


def _family(table: LazyTable, family: AttentionFamily) -> FamilyTable | None:
    try:
        return table.family(family)
    except TableError as error:
        _warn(f"ignoring a table's rows: {error}")
        return None


def _exact(tables: list[LazyTable], family: AttentionFamily) -> tuple[LazyTable, FamilyTable, float] | None:
    best: tuple[LazyTable, FamilyTable, float] | None = None
    for table in tables:  # the user's first
        rows = _family(table, family) if family in table.families else None
        if rows is not None and (best is None or prefer(rows, best[1]) is rows is not best[1]):
            best = (table, rows, 0.0)
    return best


def _nearest(
    tables: list[LazyTable], family: AttentionFamily, spec: ArchSpec
) -> tuple[LazyTable, FamilyTable, float] | None:
    found = [
        (distance, order, table, other)
        for order, table in enumerate(tables)
        if table.wave_size == spec.wave_size
        for other in table.families
        if (distance := family_distance(family, other)) is not None and distance <= MAX_DISTANCE
    ]
    for distance, _, table, other in sorted(found, key=lambda item: item[:2]):
        rows = _family(table, other)
        if rows is not None:
            return table, rows, distance
    return None


def _launchable(config: Mapping[str, int], family: AttentionFamily, spec: ArchSpec, source: str) -> bool:
    """Whether a row's config runs for a family: an exact row was compiled for it, another family's must fit too."""
    if source == "exact":
        return True
    if config["BLOCK_M"] < min_block_m(family) or config["TILE_SIZE"] < min_tile_size(family):
        return False
    if config.get("QUERY_TERMS", 0) and family.kv_dtype != "fp8_e4m3":
        return False
    return fits_lds(config, family, spec)


def _rule_answer(
    family: AttentionFamily, spec: ArchSpec | None, chain: tuple[str, ...]
) -> Callable[[tuple[int, int, int]], Answer]:
    def make(sizes: tuple[int, int, int]) -> Answer:
        choice = default_choice(AttentionProblem(family, *sizes), spec)
        config = get_kernel(choice.route).complete(choice.config, spec)
        return Answer(choice.route, config, "rule", "rule", None, (*chain, f"default rule -> {choice.route}"), {})

    return make


def _axes(rows: FamilyTable, scale: float) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Where boxes start along each size; num_seqs in the asker's units."""
    boxes = [row.when for config_rows in rows.configs.values() for row in config_rows]
    seqs = {box.num_seqs[0] for box in boxes} | {row.num_seqs[0] for row in rows.routing}
    queries = {box.max_seqlen_q[0] for box in boxes} | {row.max_seqlen_q[0] for row in rows.routing}
    keys = {box.max_seqlen_k[0] for box in boxes} | {start for row in rows.routing for start in row.routes}
    first = sorted({_first_scaled(start, scale) for start in seqs})
    return tuple(first), tuple(sorted(map(int, queries))), tuple(sorted(map(int, keys)))


def _first_scaled(start: float, scale: float) -> int:
    """The smallest num_seqs that counts as at least ``start``."""
    guess = max(int(start / scale) - 2, 1)
    while max(round(guess * scale), 1) < start:
        guess += 1
    return guess


_warned: set[str] = set()


def _warn(message: str) -> None:
    """Warn once for each message, wherever it comes from."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=5)
