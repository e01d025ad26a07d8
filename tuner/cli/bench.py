"""`attn-tune bench`: the table against every baseline rule, cell by cell, on this GPU."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..arch import get_arch
from ..cells import Cell, benchmark_cells, load_cells
from ..device import local_device
from ..search.bench import CellResult, bench_cells, geomean
from .progress import progress_reporter

WORST_ALLOWED = 0.97  # of the best rule's speed


def bench(
    arch: Annotated[str | None, typer.Option(help="Must be the local GPU's; default: the local GPU's.")] = None,
    cells: Annotated[Path | None, typer.Option(help="YAML list of cells; default: the ones that ship.")] = None,
    match: Annotated[str, typer.Option(help="Only cells whose name contains this.")] = "",
    max_cache_gb: Annotated[float, typer.Option(help="Leave out cells with a larger KV cache.")] = 80.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Time the table's answer and every rule's, interleaved, in one run.

    Exit status 1 if a cell is more than 3 % slower than the best rule.
    """
    device = local_device()
    if device is None:
        raise ValueError("bench needs a GPU, and none was found")
    spec = get_arch(arch or device.arch)
    if spec.name != device.arch:
        raise ValueError(f"--arch is {spec.name}, but this machine has {device.arch} ({device.name})")
    chosen = [cell for cell in _cells(cells, max_cache_gb) if match in cell.name]
    if not chosen:
        raise ValueError(f"no cell is left: --match {match!r}, --max-cache-gb {max_cache_gb:g}")
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    with progress_reporter(console) as progress:
        results = list(bench_cells(chosen, spec, progress))
    losing = [item for item in results if _loses(item)]
    if json:
        typer.echo(json_text.dumps(_summary(results), indent=2))
    else:
        _print(results, console)
    raise typer.Exit(1 if losing else 0)


def _loses(item: CellResult) -> bool:
    return item.ratio is None or not item.ratio >= WORST_ALLOWED  # NaN, too


def _cells(path: Path | None, max_cache_gb: float) -> list[Cell]:
    return benchmark_cells(max_cache_gb * 1e9) if path is None else load_cells(path)


def _summary(results: list[CellResult]) -> dict[str, object]:
    rules = sorted({name for item in results for name in item.rules})
    ratios = [item.ratio for item in results if item.ratio is not None]
    return {
        "cells": [item.to_dict() for item in results],
        "geomean_best_rule": geomean(ratios) if ratios else None,  # JSON has no NaN
        "geomean": {name: geomean(item.against(name) for item in results) for name in rules} if ratios else {},
        "worst": min(ratios, default=None),
    }


def _print(results: list[CellResult], console: Console) -> None:
    rules = sorted({name for item in results for name in item.rules})
    table = Table(box=None, pad_edge=False)
    for title in ("cell", "us", "source", *rules, "best rule / table"):
        table.add_column(title, justify="left" if title in ("cell", "source") else "right")
    for item in results:
        ratio = "failed" if item.ratio is None else f"{item.ratio:.2f}"
        style = "red" if _loses(item) else ""
        table.add_row(
            item.name,
            "-" if item.us is None else f"{item.us:.1f}",
            item.source,
            *(f"{item.rules[name]:.1f}" if item.rules.get(name) else "-" for name in rules),
            ratio,
            style=style,
        )
    console.print(table)
    ratios = [item.ratio for item in results if item.ratio is not None]
    if not ratios:
        console.print("no cell has both the table's time and a rule's")
        return
    console.print(f"geomean of best rule / table: {geomean(ratios):.3f}, worst {min(ratios):.3f}")
    for name in rules:
        console.print(f"geomean of {name} / table: {geomean(item.against(name) for item in results):.3f}")
