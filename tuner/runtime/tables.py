"""The tables of an arch at run time: opened once, and asked for a family or for the one nearest to it."""

from __future__ import annotations

import os
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ..arch import canonical_arch
from ..problem import AttentionFamily
from ..store.load import LazyTable, open_table
from ..store.overlay import prefer, table_paths
from ..store.table import FamilyTable, TableError
from .distance import MAX_DISTANCE, family_distance


class Found(NamedTuple):
    """The rows that answer for a family, where they come from, and how far their family is from the one asked for."""

    table: LazyTable
    rows: FamilyTable
    distance: float


def open_tables(arch: str) -> tuple[list[LazyTable], list[str]]:
    """The tables of an arch, the user's first, and why others were ignored; warns once of each of those."""
    tables, ignored = [], []
    for path in table_paths(arch):
        try:
            status = os.stat(path)
            table = _open(path, status.st_mtime_ns, status.st_size)
            if canonical_arch(table.arch) != arch:
                raise TableError(path, 0, "arch.name", f"is a table for {table.arch}, not for {arch}")
            tables.append(table)
        except FileNotFoundError:
            continue
        except (TableError, OSError, ValueError) as error:
            warn_once(f"ignoring a table: {error}")
            ignored.append(f"ignored: {error}")
    return tables, ignored


def find_rows(tables: list[LazyTable], family: AttentionFamily, wave_size: int | None) -> Found | None:
    """The rows of a family, else those of the nearest one within :data:`~.distance.MAX_DISTANCE`, else None.

    Of several tables with the family, the one with the better evidence is believed, then the first. ``wave_size`` is
    that of the device; where it is unknown, no other family answers.
    """
    best: Found | None = None
    for table in tables:
        rows = _rows(table, family) if family in table.families else None
        if rows is not None and (best is None or prefer(shipped=rows, user=best.rows) is rows):
            best = Found(table, rows, 0.0)
    if best is not None or wave_size is None:
        return best
    near = [
        (distance, order, table, other)
        for order, table in enumerate(tables)
        if table.wave_size == wave_size
        for other in table.families
        if (distance := family_distance(family, other)) is not None and distance <= MAX_DISTANCE
    ]
    for distance, _, table, other in sorted(near, key=lambda item: item[:2]):
        rows = _rows(table, other)
        if rows is not None:
            return Found(table, rows, distance)
    return None


def warn_once(message: str) -> None:
    """Warn of something the first time that it happens, at the caller's line outside this package."""
    mine = object()
    if _warned.setdefault(message, mine) is not mine:  # one step, so that of two threads only one warns
        return
    package, frame, level = __name__.split(".")[0], sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def forget_warnings() -> None:
    """Warn again of what was warned of before."""
    _warned.clear()


_warned: dict[str, object] = {}


@lru_cache(maxsize=8)
def _open(path: Path, _modified: int, _size: int) -> LazyTable:
    """A table; a file that has changed since is another one."""
    return open_table(path)


def _rows(table: LazyTable, family: AttentionFamily) -> FamilyTable | None:
    try:
        return table.family(family)
    except TableError as error:
        warn_once(f"ignoring a table's rows: {error}")
        return None
