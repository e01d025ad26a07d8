"""`attn-tune sweep`: tune families for an architecture and write their table."""

from __future__ import annotations

import json as json_text
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..arch import ArchSpec, get_arch
from ..models import all_families, find_model
from ..problem import AttentionFamily
from ..search.machines import Machines, this_machine
from ..search.measured import RACE_POLICY
from ..search.modelled import environment
from ..search.ray_cluster import ray_cluster
from ..search.shapes import load_shapes
from ..search.tables import distinct_compilations, kept_families, save_table
from ..search.tune import SEARCHES, tune
from ..store.journal import Journal
from .progress import progress_reporter
from .sweep_view import print_dry_run, print_summary


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
    devices: Annotated[str | None, typer.Option(help="GPUs to measure on: all, or indices such as 0,1.")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Run the trials on a Ray cluster: its address, auto, or local.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Stop after this many seconds with the best so far.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Worker processes; default: all cores.")] = None,
    configs: Annotated[int, typer.Option(help="Configurations to compile per shape, besides the rules'.")] = 20,
    time_limit: Annotated[float, typer.Option(help="Seconds that one compilation may take.")] = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the work, and do none.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Tune shapes for an arch and write the table.

    Every trial goes to the journal beside the table (NAME.trials.jsonl): stop at any time, and the same command goes
    on from there. Exit status: 0, 1 if a shape or a size got no valid time, 2 for a mistake in the input or a machine
    that cannot go on, 130 after Ctrl-C.
    """
    for name, value in (("--budget", budget), ("--jobs", jobs), ("--configs", configs), ("--time-limit", time_limit)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, not {value}")
    if search not in SEARCHES:
        raise ValueError(f"--search must be {' or '.join(SEARCHES)}, not {search!r}")
    if ray is not None and devices is not None:
        raise ValueError("--devices is for this machine: with --ray all GPUs of the cluster measure")
    families = _families(model, tp, shapes)
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    with ray_cluster(ray) if ray is not None else nullcontext(this_machine(devices or "0")) as machines:
        spec, on_device = _target(arch, evaluator, machines)
        if dry_run:
            print_dry_run(families, spec, on_device, configs, console, json)
            return
        path = out or Path("results", f"{spec.name}.yaml")
        built_with = environment() | ({"policy": RACE_POLICY} if on_device else {})
        kept_families(path, spec, built_with, families)  # refuses what cannot be added to before the work is done
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(path.with_suffix(".trials.jsonl"))
        start = time.monotonic()
        try:
            with progress_reporter(console) as progress:
                tuned = tune(
                    families,
                    spec,
                    journal,
                    machines,
                    on_device=on_device,
                    search=search,
                    configs_per_family=configs,
                    time_limit=time_limit,
                    jobs=jobs,
                    deadline=None if budget is None else start + budget,
                    progress=progress,
                )
        except KeyboardInterrupt:
            console.print(f"stopped: {journal.path} has every finished trial; the same command goes on from there")
            raise typer.Exit(130) from None
    if tuned.tables:  # read again: another sweep may have added to the table meanwhile
        kept = kept_families(path, spec, built_with, families)
        save_table(path, spec, built_with, (kept | {item.family: item for item in tuned.tables}).values())
    summary = {
        "arch": spec.name,
        "table": str(path) if tuned.tables else None,
        "journal": str(journal.path),
        "complete": tuned.complete,
        "shapes": len(families),
        "rows": sum(len(rows) for item in tuned.tables for rows in item.configs.values()),
        "compilations_used": sum(distinct_compilations(item) for item in tuned.tables),
        "evidence": "measured" if on_device else "modelled",
        "trials": dict(tuned.trials),
        "without_valid_row": {str(family): reason for family, reason in tuned.failed.items()},
        "sizes_without_time": [str(problem) for problem in tuned.without_time],
        "measuring_seconds": round(tuned.measuring_seconds, 1),
        "seconds": round(time.monotonic() - start, 1),
    }
    if json:
        typer.echo(json_text.dumps(summary, indent=2))
    else:
        print_summary(summary, console)
    raise typer.Exit(1 if tuned.failed or tuned.without_time else 0)


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


def _target(arch: str | None, evaluator: str, machines: Machines) -> tuple[ArchSpec, bool]:
    """The arch to tune for, and whether to time on the device."""
    if evaluator not in ("auto", "device", "compile"):
        raise ValueError(f"--evaluator must be auto, device or compile, not {evaluator!r}")
    device = machines.find_device() if arch is None or evaluator != "compile" else None
    if arch is None and device is None:
        raise ValueError(f"--arch is needed: no GPU was found on {machines.name}")
    spec = get_arch(arch or (device.arch if device else ""))
    matches = device is not None and device.arch == spec.name
    if evaluator == "device" and not matches:
        found = f"{device.arch} ({device.name})" if device else "no GPU"
        raise ValueError(f"--evaluator device: --arch is {spec.name}, but {machines.name} has {found}")
    if matches and device is not None and device.compute_units != spec.compute_units:
        spec = replace(spec, compute_units=device.compute_units)  # a partition, or another product of the arch
    return spec, matches and evaluator != "compile"
