"""What is believed about an arch: the shipped table with the user's laid over it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..arch import canonical_arch
from ..problem import AttentionFamily
from .load import open_table
from .overlay import all_table_paths, prefer, table_paths
from .table import FamilyTable, Table


@dataclass(frozen=True)
class Believed:
    """The part of a table file that is believed: its families that the other table does not have, or has no better."""

    path: Path
    table: Table


def believed_tables(arch: str) -> list[Believed]:
    """The tables of an arch, the user's first; each family is in one of them, and a table without any is left out.

    Raises:
        ValueError: there is no table for the arch; the message says where it would be.
        TableError: a table is not valid.
    """
    paths = table_paths(arch)
    opened = [(path, open_table(path)) for path in paths if path.exists()]
    if not opened:
        raise ValueError(f"no table for {canonical_arch(arch)}: looked for {' and '.join(map(str, paths))}")
    best: dict[AttentionFamily, FamilyTable] = {}
    for _, lazy in opened:
        for family in lazy.families:
            rows = lazy.family(family)
            best[family] = prefer(shipped=rows, user=best[family]) if family in best else rows
    found = []
    for path, lazy in opened:
        own = tuple(rows for family in lazy.families if (rows := lazy.family(family)) is best[family])
        table = Table(lazy.arch, lazy.compute_units, lazy.wave_size, lazy.built_with, own)
        found += [Believed(path, table)] if own else []
    return found


def archs_with_tables() -> list[str]:
    """The archs that have a table, in alphabetical order. A file not named as an arch is never looked up."""
    names = {path.stem for path in all_table_paths()}
    return sorted(name for name in names if name == canonical_arch(name))
