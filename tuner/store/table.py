"""The table of one architecture: what a row is, and the YAML text that people read, edit and ship.

Sizes are (num_seqs, max_seqlen_q, max_seqlen_k) throughout. An interval is (low, high), both included, and ``math.inf``
leaves it open.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..problem import AttentionFamily
from .evidence import weakest
from .yaml_text import Interval, yaml_interval, yaml_mapping, yaml_number, yaml_scalar

SCHEMA = 1

Sizes = tuple[int, int, int]

SIZE_NAMES = ("num_seqs", "max_seqlen_q", "max_seqlen_k")

CONFIG_ORDER = ("BLOCK_M", "TILE_SIZE", "NUM_SEGMENTS", "NUM_PROGRAMS", "num_warps", "num_stages", "waves_per_eu")


class TableError(ValueError):
    """A table is not valid. ``line`` counts from 1, 0 when no line is to blame; ``field`` may be empty."""

    def __init__(self, path: str | os.PathLike[str], line: int, field: str, reason: str) -> None:
        super().__init__(path, line, field, reason)
        self.path = os.fspath(path)
        self.line = line
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return ": ".join(part for part in (place, self.field, self.reason) if part)


@dataclass(frozen=True, order=True)
class Box:
    """A range of sizes. Raises ValueError naming an interval that is empty or does not start at 1 or above."""

    max_seqlen_q: Interval
    num_seqs: Interval
    max_seqlen_k: Interval = (1, math.inf)

    def __post_init__(self) -> None:
        for name in ("max_seqlen_q", "num_seqs", "max_seqlen_k"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be [low, high] with 1 <= low <= high, not [{low}, {high}]")

    def contains(self, sizes: Sizes) -> bool:
        """Whether (num_seqs, max_seqlen_q, max_seqlen_k) lies in the box."""
        pairs = zip((self.num_seqs, self.max_seqlen_q, self.max_seqlen_k), sizes, strict=True)
        return all(low <= size <= high for (low, high), size in pairs)

    def __str__(self) -> str:
        names = ("max_seqlen_q", "num_seqs", "max_seqlen_k")
        return "{" + ", ".join(f"{name}: {yaml_interval(getattr(self, name))}" for name in names) + "}"


@dataclass(frozen=True)
class RoutingRow:
    """Which kernel runs: ``routes`` maps the max_seqlen_k from which on a kernel is used to its name."""

    max_seqlen_q: Interval
    num_seqs: Interval
    routes: Mapping[int, str]
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        Box(self.max_seqlen_q, self.num_seqs)
        if not self.routes or min(self.routes) < 1:
            raise ValueError(f"routes must map max_seqlen_k from 1 on to kernels, not {dict(self.routes)!r}")
        object.__setattr__(self, "routes", dict(sorted(self.routes.items())))

    def segments(self) -> list[tuple[Interval, str]]:
        """The intervals of max_seqlen_k and the kernel of each, in order."""
        starts = list(self.routes)
        ends: list[float] = [*(start - 1 for start in starts[1:]), math.inf]
        return [((low, high), self.routes[low]) for low, high in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class ConfigRow:
    """The configuration of a kernel over a box of sizes, and how well it is known.

    ``us`` is the smallest and largest time, in microseconds, over the tuned sizes in the box. ``regret`` is its time
    over the best candidate's and ``best_rule`` the best baseline rule's time over its own, each at the worst size in
    the box. Numbers are rounded as the file shows them: times to 4 significant digits, errors to 3, ratios to 3
    decimals.
    """

    when: Box
    config: Mapping[str, int]
    evidence: str
    us: tuple[float, float] | None = None
    regret: float | None = None
    best_rule: float | None = None
    spread: float | None = None
    samples: int = 0
    error: float | None = None
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.us is not None:
            put(self, "us", tuple(float(f"{us:.4g}") for us in self.us))
        if self.error is not None:
            put(self, "error", float(f"{self.error:.3g}"))
        for name in ("regret", "best_rule", "spread"):
            if getattr(self, name) is not None:
                put(self, name, round(float(getattr(self, name)), 3))


@dataclass(frozen=True)
class FamilyTable:
    """Everything a table knows about one family. ``tuned_up_to`` holds the largest tuned value of each size, if known.

    Raises ValueError if one of those is below 1.
    """

    family: AttentionFamily
    routing: tuple[RoutingRow, ...]
    configs: Mapping[str, tuple[ConfigRow, ...]]
    tuned_up_to: Sizes | None = None
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.tuned_up_to is not None and min(self.tuned_up_to) < 1:
            raise ValueError(f"tuned_up_to must hold sizes of 1 or more, not {self.tuned_up_to}")

    @property
    def evidence(self) -> str:
        """The weakest evidence of any row."""
        return weakest(row.evidence for rows in self.configs.values() for row in rows)

    def find(self, sizes: Sizes) -> tuple[str, ConfigRow]:
        """The kernel and row for some sizes. Raises KeyError where an unchecked table has a hole."""
        num_seqs, max_seqlen_q, max_seqlen_k = sizes
        for routing in self.routing:
            if Box(routing.max_seqlen_q, routing.num_seqs).contains(sizes):
                start = max((start for start in routing.routes if start <= max_seqlen_k), default=0)
                kernel = routing.routes.get(start, "")
                for row in self.configs.get(kernel, ()):
                    if row.when.contains(sizes):
                        return kernel, row
        raise KeyError(f"no row for num_seqs {num_seqs}, max_seqlen_q {max_seqlen_q}, max_seqlen_k {max_seqlen_k}")


@dataclass(frozen=True)
class Table:
    """The families tuned for one architecture, and the versions that they were tuned with."""

    arch: str
    compute_units: int
    wave_size: int
    built_with: Mapping[str, str]
    families: tuple[FamilyTable, ...]


def dump_table(table: Table) -> str:
    """The YAML text of a table: the same bytes for equal tables, one line for each thing a person may want to change.

    Raises:
        ValueError: a number is not finite or a name cannot be printed.
    """
    arch = {"name": table.arch, "compute_units": table.compute_units, "wave_size": table.wave_size}
    lines = [
        "# routes: which kernel, from which max_seqlen_k on. us: time of one call, or its range over the row.",
        "# regret: us over the best candidate's. best_rule: the best baseline rule's us over this. At the worst size.",
        f"schema: {SCHEMA}",
        f"arch: {yaml_mapping(arch)}",
        f"built_with: {yaml_mapping(table.built_with)}",
        "families:" if table.families else "families: []",
    ]
    for family in table.families:
        lines.append(f"  - problem: {yaml_mapping(family.family.to_dict())}")
        if family.tuned_up_to is not None:
            lines.append(f"    tuned_up_to: {yaml_mapping(dict(zip(SIZE_NAMES, family.tuned_up_to, strict=True)))}")
        lines.append("    routing:")
        for row in sorted(family.routing, key=lambda row: (row.max_seqlen_q, row.num_seqs)):
            plane = f"max_seqlen_q: {yaml_interval(row.max_seqlen_q)}, num_seqs: {yaml_interval(row.num_seqs)}"
            lines.append(f"      - {{{plane}, routes: {yaml_mapping(row.routes)}}}")
        lines.append("    configs:")
        for kernel, rows in sorted(family.configs.items()):
            lines.append(f"      {yaml_scalar(kernel)}:")
            for config_row in sorted(rows, key=lambda row: row.when):
                lines += _config_lines(config_row)
    return "\n".join(lines) + "\n"


def write_table(path: str | os.PathLike[str], table: Table) -> None:
    """Replace a table file in one step: readers see the old text or the new one, and a failure leaves the old.

    Of two writers the last one wins whole. A kill can leave a hidden ``.NAME.*.tmp`` beside the file; nothing reads it.

    Raises:
        ValueError: as for :func:`dump_table`; the file is untouched.
        OSError: the file cannot be written; the message says why, the file is untouched and nothing is left beside it.
    """
    data = dump_table(table).encode()
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, f"cannot write the table: {error.strerror}", os.fspath(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _config_lines(row: ConfigRow) -> list[str]:
    order = [name for name in CONFIG_ORDER if name in row.config]
    config = {name: row.config[name] for name in [*order, *sorted(row.config.keys() - set(order))]}
    lines = [f"        - when: {row.when}", f"          config: {yaml_mapping(config)}"]
    if row.us is not None:
        low, high = (yaml_number(us) for us in row.us)
        lines.append(f"          us: {low if low == high else f'[{low}, {high}]'}")
    lines.append(f"          evidence: {row.evidence}")
    numbers = {name: getattr(row, name) for name in ("regret", "best_rule", "spread", "samples", "error")}
    shown = {name: value for name, value in numbers.items() if value is not None and (name != "samples" or value)}
    return lines + [f"          {name}: {yaml_number(value)}" for name, value in shown.items()]
