"""What `attn-tune sweep` prints at its end, and instead of its work."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ..arch import ArchSpec
from ..problem import AttentionFamily
from ..search.grid import size_grid
from ..search.measured import measured_grid
from ..search.modelled import FIRST_SHARE
from ..search.propose import first_round
from .progress import duration


def print_dry_run(
    families: Sequence[AttentionFamily], arch: ArchSpec, on_device: bool, configs: int, console: Console, json: bool
) -> None:
    """Print how much work a sweep would be."""
    grid = measured_grid if on_device else size_grid
    share = round(configs * FIRST_SHARE)
    first = sum(len(first_round(family, arch, share)) for family in families)
    later = configs - share
    counts = {
        "arch": arch.name,
        "shapes": len(families),
        "sizes": sum(len(grid(family)) for family in families),
        "compilations_at_most": first + later * len(families),
    }
    if json:
        typer.echo(json_text.dumps(counts, indent=2))
    else:
        console.print(
            f"{counts['shapes']} shapes for {arch.name}: at most {counts['compilations_at_most']} compilations, "
            f"then {'measurements' if on_device else 'predictions'} at {counts['sizes']} sizes. Nothing was run."
        )


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Print what a sweep came to, in a few lines."""
    trials = ", ".join(f"{count} {status}" for status, count in sorted(summary["trials"].items()))
    if not summary["complete"]:
        console.print("incomplete: the budget ran out; this is the best so far, and the same command goes on")
    for family, reason in summary["without_valid_row"].items():
        console.print(f"no valid row: {family}: {reason}")
    for problem in summary["sizes_without_time"]:
        console.print(f"no valid time, so a neighbour's row answers: {problem}")
    seconds = duration(summary["seconds"])
    if summary["measuring_seconds"]:
        seconds += f", {duration(summary['measuring_seconds'])} of them measuring"
    console.print(
        f"{summary['shapes']} shapes for {summary['arch']} in {seconds}: {trials} trials, {summary['rows']} rows, "
        f"{summary['compilations_used']} kernels to compile at run time"
    )
    if summary["table"]:
        evidence = {"modelled": f"compiled for {summary['arch']}, not timed", "measured": "timed on this GPU"}
        console.print(f"table: {summary['table']}  ({summary['evidence']}: {evidence[summary['evidence']]})")
        folder = Path(summary["table"]).parent
        console.print(f"to use it: export ATTN_TUNE_CONFIG_DIR={folder}")
