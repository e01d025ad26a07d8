"""Whether the configs of a table can be launched: what coverage alone does not show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from ..arch import ArchSpec, canonical_arch, find_arch
from ..kernels import get_kernel, kernel_names
from ..kernels.lds import SAFE_SHARE, lds_estimate, min_block_m, min_tile_size
from ..kernels.routes import PagedAttention
from ..problem import AttentionFamily
from ..store.table import ConfigRow, FamilyTable, Table, TableError
from .source import kernel_source_hash

MAX_THREADS = 1024
"""Of one program, on every GPU of NVIDIA and AMD (CUDA C++ Programming Guide; HIP's hardware features)."""

_NEEDED = ("BLOCK_M", "TILE_SIZE", "num_warps", "num_stages")


def launch_faults(table: Table, path: str | os.PathLike[str]) -> list[TableError]:
    """Rows whose kernel does not support their family on the table's arch, or whose config cannot be launched there.

    LDS is estimated without compiling. Kernels and archs that this installation does not know are passed over; see
    :func:`table_warnings`.
    """
    spec = find_arch(table.arch)
    if spec is None:
        return []
    return [fault for rows in table.families for fault in _family_faults(rows, spec, path)]


def table_warnings(table: Table) -> list[str]:
    """What makes a valid table doubtful: older versions, and what this installation does not know."""
    out = []
    spec = find_arch(table.arch)
    if spec is None:
        out.append(f"arch {table.arch} is unknown: configs are not checked against its LDS")
    elif table.compute_units > spec.compute_units:
        out.append(f"{spec.name} has {spec.compute_units} compute units, not {table.compute_units}")
    current = {"triton": installed_triton(), "kernels": kernel_source_hash()}
    for name, found in current.items():
        built = table.built_with.get(name)
        if built is None:
            out.append(f"built_with does not say which {name}")
        elif found is not None and built != found:
            what = "Triton" if name == "triton" else name
            out.append(f"stale: built with {what} {built}, this installation has {found}; sweep again")
    used = {kernel for rows in table.families for kernel in rows.configs}
    for kernel in sorted(used - set(kernel_names())):
        out.append(f"kernel {kernel} is not registered: its rows are not checked, and answered by a rule instead")
    return out


def installed_triton() -> str | None:
    """The version of the installed Triton, None if there is none under that name."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def names_another_arch(table: Table, path: str | os.PathLike[str]) -> list[TableError]:
    """A fault if the file is named after one arch and holds the table of another: lookup goes by the name."""
    named = find_arch(os.path.basename(path).removesuffix(".yaml"))
    if named is None or named.name == canonical_arch(table.arch):
        return []
    return [TableError(path, 0, "arch.name", f"is {table.arch}, but the file is named after {named.name}")]


def _family_faults(rows: FamilyTable, spec: ArchSpec, path: str | os.PathLike[str]) -> Iterator[TableError]:
    for name, configs in rows.configs.items():
        if name not in kernel_names():
            continue
        kernel = get_kernel(name)
        reason = kernel.supports(rows.family, spec)
        if reason is not None:
            yield TableError(path, rows.line, f"configs.{name}", reason)
        elif isinstance(kernel, PagedAttention):
            for row in configs:
                segments = "NUM_PROGRAMS" if "NUM_PROGRAMS" in row.config else "NUM_SEGMENTS"
                needed = (*_NEEDED, segments) if kernel.split else _NEEDED
                for fault in _config_faults(row, rows.family, spec, needed):
                    yield TableError(path, row.line, f"configs.{name}", fault)


def _config_faults(row: ConfigRow, family: AttentionFamily, spec: ArchSpec, needed: tuple[str, ...]) -> Iterator[str]:
    missing = [name for name in needed if name not in row.config]
    if missing:
        yield f"config has no {', '.join(missing)}"
        return
    for name, least in (("BLOCK_M", min_block_m(family)), ("TILE_SIZE", min_tile_size(family))):
        if row.config[name] < least:
            yield f"{name} must be at least {least} for {family}, not {row.config[name]}"
    if row.config.get("QUERY_TERMS", 0) and (family.kv_dtype != "fp8_e4m3" or not spec.fp8_matrix):
        yield f"QUERY_TERMS needs kv_dtype fp8_e4m3 and fp8 matrix instructions: {family} on {spec.name}"
    threads = row.config["num_warps"] * spec.wave_size
    if threads > MAX_THREADS:
        yield f"num_warps {row.config['num_warps']} is {threads} threads; a program has at most {MAX_THREADS}"
    limit = int(SAFE_SHARE * spec.lds_per_program)
    lds = lds_estimate(row.config, family, spec)
    if lds > limit:
        yield f"the config needs about {lds} bytes of LDS; {spec.name} takes {limit} safely"
