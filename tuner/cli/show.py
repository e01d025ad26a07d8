"""`attn-tune show`: routes, thresholds and configs of the tables that lookups read."""

from __future__ import annotations

import json as json_text
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from ..arch import canonical_arch
from ..evaluate.verify import table_warnings
from ..models import find_model, models_of
from ..store.merged import Believed, archs_with_tables, believed_tables
from ..store.table import ConfigRow, FamilyTable, RoutingRow, dump_table
from ..store.yaml_text import Interval
from .arguments import Json, Model, Shape, Tp, family_options, matching, narrowing
from .matrix import compilations
from .show_view import print_family, print_family_notes, print_overview, print_title

Archs = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads it at run time
    typer.Option("--arch", help="Architecture or marketing name; repeat for more. Default: all with a table."),
]
Rows = Annotated[bool, typer.Option("--rows", help="Print the rows as the table's YAML text.")]

WIDTH_WITHOUT_TERMINAL = 120


@family_options
def show(
    shape: Shape, arch: Archs = None, model: Model = None, tp: Tp = None, rows: Rows = False, json: Json = False
) -> None:
    """Show the tables: which kernel and config runs at which sizes, and how well that is known.

    Without a filter, one line per family of calls; with --model or a family's options, the routes and configs of each.
    """
    archs = [canonical_arch(name) for name in arch or archs_with_tables()]
    if not archs:
        raise ValueError("there are no tables yet: attn-tune sweep makes them")
    tables = [part for name in archs for item in believed_tables(name) if (part := _part(item, model, tp, shape))]
    if not tables:
        raise ValueError(f"no table of {', '.join(archs)} has such a family; attn-tune show lists what there is")
    if json:
        typer.echo(json_text.dumps({"tables": [_to_dict(item) for item in tables]}, indent=2, allow_nan=False))
    elif rows:
        for item in tables:
            typer.echo(f"# {item.path}\n{dump_table(item.table)}", nl=False)
    else:
        every = [family for item in tables for family in item.table.families]
        detailed = model is not None or bool(shape) or len(every) == 1
        options = narrowing([rows.family for rows in every], model, tp) if detailed else []
        _print(tables, detailed, options, Console(highlight=False, width=_width()))


def _part(item: Believed, model: str | None, tp: int | None, shape: Shape) -> Believed | None:
    """The families that were asked for; None if there are none."""
    if tp is not None and model is None:
        raise ValueError("--tp needs --model")
    families = [rows.family for rows in item.table.families]
    if model is not None:
        of_model = set(find_model(model).families(tp))
        families = [family for family in families if family in of_model]
    kept = set(matching(families, shape))
    own = tuple(rows for rows in item.table.families if rows.family in kept)
    return replace(item, table=replace(item.table, families=own)) if own else None


def _print(tables: Sequence[Believed], detailed: bool, options: Sequence[str], console: Console) -> None:
    for number, item in enumerate(tables):
        if number:
            console.print()
        print_title(item, console)
        if not detailed:
            print_overview(item.table, console)
            continue
        for rows in item.table.families:
            print_family(rows, console)
    if detailed:
        print_family_notes(tables, console)
    if options:
        console.print(f"choose one with {', '.join(options)}", style="dim")


def _width() -> int | None:
    """A terminal's own width; elsewhere, unless COLUMNS says otherwise, enough for the widest view."""
    return None if os.isatty(1) or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL


def _to_dict(item: Believed) -> dict[str, Any]:
    return {
        "arch": item.table.arch,
        "compute_units": item.table.compute_units,
        "path": str(item.path),
        "built_with": dict(item.table.built_with),
        "warnings": table_warnings(item.table),
        "families": [_family_dict(rows) for rows in item.table.families],
    }


def _family_dict(rows: FamilyTable) -> dict[str, Any]:
    return {
        "models": models_of(rows.family),
        "problem": rows.family.to_dict(),
        "evidence": rows.evidence,
        "kernels": len(compilations(rows)),
        "routing": [_routing_dict(row) for row in rows.routing],
        "configs": {kernel: [_config_dict(row) for row in own] for kernel, own in rows.configs.items()},
    }


def _routing_dict(row: RoutingRow) -> dict[str, Any]:
    routes = {str(start): kernel for start, kernel in row.routes.items()}
    return {"max_seqlen_q": _ends(row.max_seqlen_q), "num_seqs": _ends(row.num_seqs), "routes": routes}


def _config_dict(row: ConfigRow) -> dict[str, Any]:
    when = {name: _ends(getattr(row.when, name)) for name in ("max_seqlen_q", "num_seqs", "max_seqlen_k")}
    return vars(row) | {"when": when, "config": dict(row.config)}


def _ends(interval: Interval) -> list[int | None]:
    """[low, high], null for an open end: JSON has no infinity."""
    low, high = interval
    return [low, None if high == math.inf else int(high)]
