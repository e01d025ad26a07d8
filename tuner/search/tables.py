"""From a sweep's results to the table file, keeping the families of earlier sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..arch import ArchSpec, get_arch
from ..evaluate.compile_many import CompileRequest
from ..kernels import get_kernel, kernel_names
from ..kernels.routes import PagedAttention
from ..problem import AttentionFamily, AttentionProblem
from ..store.check import check_table
from ..store.load import load_table
from ..store.programs import by_programs, compiled_entries
from ..store.table import ConfigRow, FamilyTable, Table, write_table
from .predictions import compilation


def kept_families(
    path: Path, arch: ArchSpec, built_with: Mapping[str, str], swept: Iterable[AttentionFamily]
) -> dict[AttentionFamily, FamilyTable]:
    """The families of an existing table, each of which stays unless a sweep of ``swept`` has new rows for it.

    Empty if there is no table, or one of other versions that is swept as a whole.

    Raises:
        ValueError: it is for another arch or number of compute units, or of other versions and not all of its families
            are swept.
        TableError: the existing table is not valid.
    """
    try:
        table = load_table(path)
    except FileNotFoundError:
        return {}
    families = {rows.family: rows for rows in table.families}
    own = f"{table.arch} with {table.compute_units} compute units"
    other = f"{arch.name} with {arch.compute_units} compute units"
    if own != other:
        raise ValueError(f"{path} is a table for {own}, not {other}: give another --out")
    if dict(table.built_with) == dict(built_with):
        return families
    if families.keys() <= set(swept):
        return {}
    raise ValueError(
        f"{path} was built with {_versions(table.built_with)}, now it would be {_versions(built_with)}: "
        f"sweep all of its {len(families)} families again, or give another --out"
    )


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


def table_config(
    kernel: str, config: Mapping[str, int], problem: AttentionProblem, arch: ArchSpec
) -> Mapping[str, int]:
    """What stands in a table for a config that won at a problem; see :mod:`~attn_tune.store.programs`.

    A third party's kernel may mean something else by NUM_SEGMENTS: its configs stay as they are.
    """
    if not isinstance(get_kernel(kernel), PagedAttention):
        return config
    return by_programs(config, problem.family, problem.sizes, arch.compute_units)


def row_requests(table: Table) -> dict[CompileRequest, ConfigRow]:
    """What the rows of a table compile where they are used, each with its first row, in a fixed order.

    Rows of kernels that are not registered are left out. Raises ValueError for an arch that is not known.
    """
    arch = get_arch(table.arch)
    found: dict[CompileRequest, ConfigRow] = {}
    for rows in table.families:
        for kernel in rows.configs.keys() & set(kernel_names()):
            for row in rows.configs[kernel]:
                config = get_kernel(kernel).complete(row.config, arch)
                found.setdefault(CompileRequest(kernel, rows.family, compilation(kernel, config)[1]), row)
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def distinct_compilations(table: FamilyTable) -> int:
    """How many kernels a family's rows need compiled."""
    return len(
        {
            (kernel, frozenset(compiled_entries(row.config).items()))
            for kernel, rows in table.configs.items()
            for row in rows
        }
    )
