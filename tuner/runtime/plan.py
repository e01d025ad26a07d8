"""How one family is answered on one device: exact table, nearest family, or rule; made once, then only read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..arch import ArchSpec, canonical_arch, find_arch
from ..kernels import get_kernel, kernel_names
from ..kernels.lds import fits_lds, min_block_m, min_tile_size
from ..kernels.routes import PagedAttention
from ..problem import AttentionFamily, AttentionProblem
from ..store.table import SIZE_NAMES, FamilyTable, Sizes
from .answer import Answer
from .split import SplitAnswer, split_answer
from .tables import find_rows, open_tables, warn_once

_MAX_REMEMBERED = 4096  # rule answers kept per family
_NO_DEVICE = "unknown"


@dataclass(frozen=True)
class Plan:
    """Answers of one family on one device. ``find`` costs two dictionary reads and three bisections."""

    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # where boxes start, per size
    make: Callable[[Sizes], Answer | SplitAnswer]
    cells: dict[Sizes, Answer | SplitAnswer] = field(default_factory=dict)

    def find(self, num_seqs: int, max_seqlen_q: int, max_seqlen_k: int) -> Answer:
        """The answer at some sizes. Threads may race to fill a cell: both write the same answer."""
        seqs, queries, keys = self.axes
        cell = (bisect_right(seqs, num_seqs), bisect_right(queries, max_seqlen_q), bisect_right(keys, max_seqlen_k))
        answer = self.cells.get(cell)
        if answer is None:
            answer = self.make((num_seqs, max_seqlen_q, max_seqlen_k))
            if not (isinstance(answer, Answer) and answer.source == "rule"):  # a rule looks at the sizes themselves
                self.cells[cell] = answer
        return answer if isinstance(answer, Answer) else answer.at(num_seqs, max_seqlen_q, max_seqlen_k)


@dataclass(frozen=True)
class RulePlan:
    """Answers of the default rule, which looks at exact sizes; the latest ones are remembered."""

    make: Callable[[Sizes], Answer]
    answers: dict[Sizes, Answer] = field(default_factory=dict)

    def find(self, num_seqs: int, max_seqlen_q: int, max_seqlen_k: int) -> Answer:
        """The answer at some sizes."""
        sizes = (num_seqs, max_seqlen_q, max_seqlen_k)
        answer = self.answers.get(sizes)
        if answer is None:
            if len(self.answers) >= _MAX_REMEMBERED:
                self.answers.clear()
            answer = self.answers[sizes] = self.make(sizes)
        return answer


def make_plan(arch: str | None, family: AttentionFamily, compute_units: int | None = None) -> Plan | RulePlan:
    """Find out how to answer for a family: reads the tables, and warns once when the answer is only a fallback.

    ``arch`` is None for the device of this machine. ``compute_units`` are those of the device; None: of the local one,
    or as many as the table was made for.
    """
    chain: tuple[str, ...]
    if arch is None:
        name, compute_units, chain = _local_device(compute_units)
    else:
        name = canonical_arch(arch)
        chain = (f"arch {name}" if name == arch else f"arch {name}, from {arch!r}",)
    spec = find_arch(name)
    tables, ignored = open_tables(name)
    chain = (*chain, *ignored)
    found = find_rows(tables, family, spec.wave_size if spec else None)
    if found is None:
        where = ", ".join(str(table.path) for table in tables) or f"no table for {name}"
        if name != _NO_DEVICE:
            warn_once(f"no tuned config for {family} on {name} ({where}): answering by the default rule")
        return RulePlan(_rule(family, spec, (*chain, f"no table knows {family} or a family near it ({where})")))
    table, rows, distance = found
    units = compute_units or table.compute_units
    # The same programs per unit load a device alike: more KV heads, or fewer units, count like more sequences.
    scale = family.num_kv_heads / rows.family.num_kv_heads * table.compute_units / units
    source = "exact" if distance == 0 and scale == 1 else "nearest"
    chain = (*chain, f"table {table.path}, built with Triton {table.built_with.get('triton', '?')}")
    if distance:
        chain = (*chain, f"{family} is not in it; nearest is {rows.family} (distance {distance:.1f})")
        warn_once(f"no tuned config for {family} on {name}: answering with that of {rows.family}")
    else:
        chain = (*chain, f"family {family}")
    if scale != 1:
        tuned = f"{rows.family.num_kv_heads} on {table.compute_units}"
        chain = (
            *chain,
            f"num_seqs counts {scale:g} times: {family.num_kv_heads} KV heads on {units} units, tuned for {tuned}",
        )

    def make(sizes: Sizes) -> Answer | SplitAnswer:
        scaled = (max(round(sizes[0] * scale), 1), *sizes[1:])
        route, row = rows.find(scaled)
        steps = (*chain, f"routing -> {route}", f"row {row.when}, line {row.line}, {row.evidence}")
        largest = zip(SIZE_NAMES, scaled, rows.tuned_up_to or scaled, strict=True)
        beyond = {name: limit for name, size, limit in largest if size > limit}
        if beyond:
            limits = ", ".join(f"{name} {limit}" for name, limit in beyond.items())
            steps = (*steps, f"beyond what was tuned, which ends at {limits}")
        reason = _refusal(route, row.config, family, spec, distance)
        if reason is not None:
            warn_once(f"not using a row of {table.path}: {reason}")
            return _rule(family, spec, (*steps, f"not used: {reason}"))(sizes)
        us = row.us[1] if row.us else None
        config = get_kernel(route).complete(row.config, spec)
        answer = Answer(route, config, source, row.evidence, us, steps, table.built_with, tuple(beyond))
        if not isinstance(get_kernel(route), PagedAttention):
            return answer  # a third party may mean something else by NUM_SEGMENTS
        return split_answer(answer, family, units, table.compute_units) or answer

    return Plan(_axes(rows, scale), make)


def _local_device(compute_units: int | None) -> tuple[str, int | None, tuple[str, ...]]:
    """(arch name, compute units, the first step of the chain) of this machine's device."""
    from ..device import local_device  # asks drivers; slow to import

    device = local_device()
    if device is None:
        warn_once("no GPU found and no arch given: answering by the default rule")
        return _NO_DEVICE, compute_units, ("no arch given, and no GPU found",)
    units = compute_units or device.compute_units
    return device.arch, units, (f"arch {device.arch}: {device.name}, {units} units",)


def _refusal(
    route: str, config: Mapping[str, int], family: AttentionFamily, spec: ArchSpec | None, distance: float
) -> str | None:
    """Why a row's config cannot run for a family, or None.

    An exact row was compiled for the family; the config of another family must fit as well.
    """
    if route not in kernel_names():
        return f"kernel {route} is not registered in this process"
    if spec is None:
        return None
    reason = get_kernel(route).supports(family, spec)
    if reason is not None or distance == 0:
        return reason
    for name, least in (("BLOCK_M", min_block_m(family)), ("TILE_SIZE", min_tile_size(family)), ("num_stages", 1)):
        if config.get(name, 0) < least:
            return f"{name} is less than the {least} that {family} needs"
    if config.get("QUERY_TERMS", 0) and family.kv_dtype != "fp8_e4m3":
        return f"QUERY_TERMS is for kv_dtype fp8_e4m3, not {family.kv_dtype}"
    return None if fits_lds(config, family, spec) else f"its LDS is over the limit of {spec.name} for {family}"


def _rule(family: AttentionFamily, spec: ArchSpec | None, chain: tuple[str, ...]) -> Callable[[Sizes], Answer]:
    from ..baselines import default_choice  # not needed where tables answer

    def make(sizes: Sizes) -> Answer:
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
    if rows.tuned_up_to is not None:
        for starts, largest in zip((seqs, queries, keys), rows.tuned_up_to, strict=True):
            starts.add(largest + 1)
    first = sorted({_first_scaled(start, scale) for start in seqs})
    return tuple(first), tuple(sorted(queries)), tuple(sorted(keys))


def _first_scaled(start: int, scale: float) -> int:
    """The smallest num_seqs that counts as at least ``start``."""
    guess = max(int(start / scale) - 2, 1)
    while max(round(guess * scale), 1) < start:
        guess += 1
    return guess
