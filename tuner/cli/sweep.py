"""`attn-tune sweep`: tune families for an architecture and write their table."""

from __future__ import annotations

import json as json_text
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..arch import ArchSpec, get_arch
from ..device import local_device
from ..evaluate.workers import run_tasks
from ..kernels import get_kernel, kernel_names
from ..models import all_families, find_model
from ..problem import AttentionFamily
from ..search.grid import size_grid
from ..search.measured import RACE_POLICY, measure_families, measured_grid, measured_table
from ..search.modelled import FIRST_SHARE, Compiled, Progress, compile_families, environment, modelled_table
from ..search.propose import first_round
from ..search.shapes import load_shapes
from ..search.staged import Effort, search_cell, search_cell_exhaustively
from ..search.tables import distinct_compilations, kept_families, save_table
from ..store.journal import Journal
from ..store.table import FamilyTable
from ..store.trial import Trial
from .progress import duration, progress_reporter

_SEARCHES = {"staged": search_cell, "exhaustive": search_cell_exhaustively}


def sweep(
    arch: Annotated[
        str | None, typer.Option(help="Architecture or marketing name, such as gfx950; default: the local GPU's.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Tune this model only; default: all that ship.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel degree of --model; default: all listed.")] = None,
    shapes: Annotated[Path | None, typer.Option(help="YAML list of shapes to tune instead of models.")] = None,
    out: Annotated[Path | None, typer.Option(help="Table to write; default: results/ARCH.yaml.")] = None,
    evaluator: Annotated[
        str, typer.Option(help="device: time on the GPU; compile: compile and predict; auto: device if it is --arch.")
    ] = "auto",
    search: Annotated[
        str, typer.Option(help="Of each size on the device: staged, or exhaustive (every compiled configuration).")
    ] = "staged",
    devices: Annotated[str, typer.Option(help="GPUs to measure on: all, or indices such as 0,1.")] = "0",
    budget: Annotated[float | None, typer.Option(help="Stop after this many seconds with the best so far.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Worker processes; default: all cores.")] = None,
    configs: Annotated[int, typer.Option(help="Configurations to compile per shape, besides the rules'.")] = 20,
    time_limit: Annotated[float, typer.Option(help="Seconds that one compilation may take.")] = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the work, and do none.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Tune shapes for an arch and write the table.

    Every trial goes to the journal beside the table (NAME.trials.jsonl): stop at any time, and the same command goes
    on from there. Exit status: 0, 1 if a shape got no valid row, 2 for a mistake in the input, 130 after Ctrl-C.
    """
    spec, on_device = _target(arch, evaluator)
    for name, value in (("--budget", budget), ("--jobs", jobs), ("--configs", configs), ("--time-limit", time_limit)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, not {value}")
    if search not in _SEARCHES:
        raise ValueError(f"--search must be {' or '.join(_SEARCHES)}, not {search!r}")
    families = _families(model, tp, shapes)
    path = out or Path("results", f"{spec.name}.yaml")
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    if dry_run:
        _print_dry_run(families, spec, on_device, configs, console, json)
        return
    built_with = environment() | ({"policy": RACE_POLICY} if on_device else {})
    kept_families(path, spec, built_with, families)  # refuses a table that cannot be added to before the work is done
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path.with_suffix(".trials.jsonl"))
    start = time.monotonic()
    limits: dict[str, Any] = {
        "configs_per_family": configs,
        "time_limit": time_limit,
        "jobs": jobs,
        "deadline": None if budget is None else start + budget,
    }
    try:
        with progress_reporter(console) as progress:
            if on_device:
                run = measure_families(
                    families,
                    spec,
                    journal,
                    search=_SEARCHES[search],
                    effort=Effort(),
                    devices=_devices(devices),
                    progress=progress,
                    **limits,
                )
                complete, trials = run.complete, Counter(trial.status for trial in run.trials.values())
                tables, failed = _build(
                    _build_measured, [(item, run.trials, spec) for item in families], jobs, progress
                )
            else:
                state, complete = compile_families(families, spec, journal, progress=progress, **limits)
                trials = Counter(status for item in state.values() for status in item.status.values())
                tables, failed = _build(
                    _build_modelled, [(item, compiled, spec) for item, compiled in state.items()], jobs, progress
                )
    except KeyboardInterrupt:
        console.print(f"stopped: {journal.path} has every finished trial; the same command goes on from there")
        raise typer.Exit(130) from None
    if tables:  # read again: another sweep may have added to the table meanwhile
        kept = kept_families(path, spec, built_with, families)
        save_table(path, spec, built_with, (kept | {item.family: item for item in tables}).values())
    summary = {
        "arch": spec.name,
        "table": str(path) if tables else None,
        "journal": str(journal.path),
        "complete": complete,
        "shapes": len(families),
        "rows": sum(len(rows) for item in tables for rows in item.configs.values()),
        "compilations_used": sum(distinct_compilations(item) for item in tables),
        "evidence": "measured" if on_device else "modelled",
        "trials": dict(trials),
        "without_valid_row": {str(family): reason for family, reason in failed.items()},
        "seconds": round(time.monotonic() - start, 1),
    }
    if json:
        typer.echo(json_text.dumps(summary, indent=2))
    else:
        _print_summary(summary, console)
    raise typer.Exit(1 if failed else 0)


def _families(model: str | None, tp: int | None, shapes: Path | None) -> list[AttentionFamily]:
    if shapes is not None:
        if model is not None or tp is not None:
            raise ValueError("--shapes cannot be combined with --model or --tp")
        return load_shapes(shapes)
    if model is not None:
        return find_model(model).families(tp)
    if tp is not None:
        raise ValueError("--tp needs --model")
    return all_families()


def _target(arch: str | None, evaluator: str) -> tuple[ArchSpec, bool]:
    """The arch to tune for, and whether to time on the device."""
    if evaluator not in ("auto", "device", "compile"):
        raise ValueError(f"--evaluator must be auto, device or compile, not {evaluator!r}")
    device = local_device() if arch is None or evaluator != "compile" else None
    if arch is None and device is None:
        raise ValueError("--arch is needed: no GPU was found on this machine")
    spec = get_arch(arch or (device.arch if device else ""))
    matches = device is not None and device.arch == spec.name
    if evaluator == "device" and not matches:
        found = f"{device.arch} ({device.name})" if device else "no GPU"
        raise ValueError(f"--evaluator device: --arch is {spec.name}, but this machine has {found}")
    if matches and device is not None and device.compute_units != spec.compute_units:
        spec = replace(spec, compute_units=device.compute_units)  # a partition, or another product of the arch
    return spec, matches and evaluator != "compile"


def _devices(text: str) -> list[int]:
    """Device indices from ``all`` or ``0,1``."""
    if text == "all":
        import torch

        return list(range(torch.cuda.device_count()))
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"--devices must be all or indices such as 0,1, not {text!r}") from None


def _build(
    build: Callable[[Any], FamilyTable], tasks: Sequence[tuple[AttentionFamily, Any, ArchSpec]], jobs: int | None,
    progress: Progress,
) -> tuple[list[FamilyTable], dict[AttentionFamily, str]]:  # fmt: skip
    """The tables of all families, built in parallel, and why the other families got none."""
    workers = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    tables: list[FamilyTable] = []
    failed: dict[AttentionFamily, str] = {}
    for done, (task, outcome) in enumerate(run_tasks(build, tasks, workers=workers, time_limit=600.0), 1):
        progress(done, len(tasks), "building tables")
        if outcome.value is None:
            failed[task[0]] = _why_unsupported(task[0], task[2]) or outcome.message
        else:
            tables.append(outcome.value)
    return tables, failed


def _why_unsupported(family: AttentionFamily, arch: ArchSpec) -> str:
    """Each kernel's reason, if no kernel computes the family."""
    reasons = [get_kernel(name).supports(family, arch) for name in kernel_names()]
    return "" if None in reasons else "; ".join(str(reason) for reason in reasons)


def _build_modelled(task: tuple[AttentionFamily, Compiled, ArchSpec]) -> FamilyTable:
    return modelled_table(task[0], task[1].resources, task[2])


def _build_measured(task: tuple[AttentionFamily, dict[str, Trial], ArchSpec]) -> FamilyTable:
    return measured_table(*task)


def _print_dry_run(
    families: Sequence[AttentionFamily], arch: ArchSpec, on_device: bool, configs: int, console: Console, json: bool
) -> None:
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


def _print_summary(summary: dict[str, Any], console: Console) -> None:
    trials = ", ".join(f"{count} {status}" for status, count in sorted(summary["trials"].items()))
    if not summary["complete"]:
        console.print("incomplete: the budget ran out; this is the best so far, and the same command goes on")
    for family, reason in summary["without_valid_row"].items():
        console.print(f"no valid row: {family}: {reason}")
    console.print(
        f"{summary['shapes']} shapes for {summary['arch']} in {duration(summary['seconds'])}: {trials} trials, "
        f"{summary['rows']} rows, {summary['compilations_used']} kernels to compile at run time"
    )
    if summary["table"]:
        evidence = {"modelled": f"compiled for {summary['arch']}, not timed", "measured": "timed on this GPU"}
        console.print(f"table: {summary['table']}  ({summary['evidence']}: {evidence[summary['evidence']]})")
        folder = Path(summary["table"]).parent
        console.print(f"to use it: export ATTN_TUNE_CONFIG_DIR={folder}")
