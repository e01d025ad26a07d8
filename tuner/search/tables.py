"""From a sweep's results to the table file, keeping the families of earlier sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..arch import ArchSpec
from ..problem import AttentionFamily
from ..store.check import check_table
from ..store.load import load_table
from ..store.table import FamilyTable, Table, write_table


def kept_families(
    path: Path, arch: ArchSpec, built_with: Mapping[str, str], replaced: Iterable[AttentionFamily]
) -> list[FamilyTable]:
    """The families of an existing table that a sweep leaves alone; none if there is no table.

    Raises:
        ValueError: they were built for another arch or with other versions, and cannot stay in one table with the
            sweep's.
        TableError: the existing table is not valid.
    """
    try:
        table = load_table(path)
    except FileNotFoundError:
        return []
    kept = [rows for rows in table.families if rows.family not in set(replaced)]
    if not kept:
        return []
    if table.arch != arch.name:
        raise ValueError(f"{path} is a table for {table.arch}, not {arch.name}: give another --out")
    if dict(table.built_with) != dict(built_with):
        raise ValueError(
            f"{path} was built with {_versions(table.built_with)}, now it would be {_versions(built_with)}: "
            f"sweep all of its {len(table.families)} families again, or give another --out"
        )
    return kept


def save_table(path: Path, arch: ArchSpec, built_with: Mapping[str, str], families: Iterable[FamilyTable]) -> Table:
    """Check and write a table with its families in a fixed order.

    Raises:
        TableError: the table has a hole or an overlap, which is a defect of the builder.
        OSError: the file cannot be written; an existing one is unharmed.
    """
    ordered = tuple(sorted(families, key=lambda rows: _order(rows.family)))
    table = Table(arch.name, arch.compute_units, arch.wave_size, built_with, ordered)
    for fault in check_table(table, path):
        raise fault
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, table)
    return table


def _order(family: AttentionFamily) -> tuple[tuple[int, str], ...]:
    def key(value: object) -> tuple[int, str]:
        return (value, "") if isinstance(value, int) else (0, str(value))

    return tuple(key(value) for value in vars(family).values())


def _versions(built_with: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in built_with.items())


def distinct_compilations(table: FamilyTable) -> int:
    """How many kernels a family's rows need compiled."""
    return len(set(_compilations(table)))


def _compilations(table: FamilyTable) -> Iterator[tuple[str, frozenset[tuple[str, int]]]]:
    for kernel, rows in table.configs.items():
        for row in rows:
            yield kernel, frozenset(item for item in row.config.items() if item[0] != "NUM_SEGMENTS")
