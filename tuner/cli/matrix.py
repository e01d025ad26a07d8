"""A family's rows as a matrix: which kernel and configuration answers at which sizes."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, product

from ..store.programs import RUN_TIME_PARAMETERS, compiled_entries
from ..store.table import ConfigRow, FamilyTable
from ..store.yaml_text import Interval

Compilation = tuple[str, tuple[tuple[str, int], ...]]
"""A kernel and what is compiled of its config, sorted."""

SPLIT_MARKS = ("·", "/")
"""How NUM_SEGMENTS and NUM_PROGRAMS are marked."""


@dataclass(frozen=True)
class Cell:
    """What answers at some sizes; ``letter`` stands for the compilation, ``split`` for the segments."""

    kernel: str
    letter: str
    split: str
    evidence: str


@dataclass(frozen=True)
class Line:
    """The cells of some num_seqs along max_seqlen_k, None where keys would be fewer than query tokens."""

    num_seqs: Interval
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Plane:
    """The lines of an interval of max_seqlen_q over columns of max_seqlen_k."""

    max_seqlen_q: Interval
    columns: tuple[Interval, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Matrix:
    """The planes of a family, and the letter of each compilation."""

    planes: tuple[Plane, ...]
    letters: dict[Compilation, str]


def make_matrix(rows: FamilyTable) -> Matrix:
    """The matrix of a checked family, with neighbours joined where they say the same."""
    letters = _letters(rows)
    configs = [row for config_rows in rows.configs.values() for row in config_rows]
    keys = {row.when.max_seqlen_k[0] for row in configs} | {start for row in rows.routing for start in row.routes}
    columns = _intervals(keys)
    planes: list[Plane] = []
    for q in _intervals({row.when.max_seqlen_q[0] for row in configs} | {row.max_seqlen_q[0] for row in rows.routing}):
        in_plane = [row.when for row in configs if row.when.max_seqlen_q[0] <= q[0] <= row.when.max_seqlen_q[1]]
        starts = {box.num_seqs[0] for box in in_plane} | {row.num_seqs[0] for row in rows.routing}
        lines: list[Line] = []
        for seqs in _intervals(starts):
            cells = tuple(_cell(rows, letters, seqs[0], q[0], column) for column in columns)
            if lines and lines[-1].cells == cells:
                lines[-1] = replace(lines[-1], num_seqs=(lines[-1].num_seqs[0], seqs[1]))
            else:
                lines.append(Line(seqs, cells))
        plane = _join_columns(Plane(q, columns, tuple(lines)))
        if planes and (planes[-1].columns, planes[-1].lines) == (plane.columns, plane.lines):
            planes[-1] = replace(plane, max_seqlen_q=(planes[-1].max_seqlen_q[0], q[1]))
        else:
            planes.append(plane)
    return Matrix(tuple(planes), letters)


def compilations(rows: FamilyTable) -> dict[Compilation, list[ConfigRow]]:
    """What a family needs compiled, and the rows that use it."""
    uses: dict[Compilation, list[ConfigRow]] = {}
    for kernel, config_rows in rows.configs.items():
        for row in config_rows:
            uses.setdefault(_compilation(kernel, row), []).append(row)
    return uses


def _compilation(kernel: str, row: ConfigRow) -> Compilation:
    return kernel, tuple(sorted(compiled_entries(row.config).items()))


def _split(row: ConfigRow) -> str:
    """``·16`` for 16 segments, ``/264`` for as many as make 264 programs, nothing for one segment."""
    marked = zip(SPLIT_MARKS, RUN_TIME_PARAMETERS, strict=True)
    return next((f"{mark}{row.config[name]}" for mark, name in marked if row.config.get(name, 1) > 1), "")


def _letters(rows: FamilyTable) -> dict[Compilation, str]:
    """A letter for each compilation, A for the one that most rows use."""
    uses = compilations(rows)
    return dict(zip(sorted(uses, key=lambda key: (-len(uses[key]), key)), _names(), strict=False))


def _names() -> Iterator[str]:
    """A to Z, then AA to ZZ, and so on."""
    return ("".join(name) for size in count(1) for name in product(string.ascii_uppercase, repeat=size))


def _cell(
    rows: FamilyTable, letters: dict[Compilation, str], num_seqs: int, max_seqlen_q: int, column: Interval
) -> Cell | None:
    if max_seqlen_q > column[1]:
        return None
    kernel, row = rows.find((num_seqs, max_seqlen_q, column[0]))
    return Cell(kernel, letters[_compilation(kernel, row)], _split(row), row.evidence)


def _intervals(starts: Iterable[int]) -> tuple[Interval, ...]:
    """From each start to before the next, the last one open."""
    ordered = sorted(starts)
    ends: list[float] = [*(start - 1 for start in ordered[1:]), math.inf]
    return tuple(zip(ordered, ends, strict=True))


def _join_columns(plane: Plane) -> Plane:
    starts = range(len(plane.columns))
    kept = [i for i in starts if not i or any(line.cells[i] != line.cells[i - 1] for line in plane.lines)]
    columns = _intervals(plane.columns[i][0] for i in kept)
    return replace(
        plane,
        columns=columns,
        lines=tuple(Line(line.num_seqs, tuple(line.cells[i] for i in kept)) for line in plane.lines),
    )
