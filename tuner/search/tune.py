"""Tune families on some machines, and build their tables: what a sweep is, without its command line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arch import ArchSpec
from ..evaluate.workers import run_tasks
from ..kernels import get_kernel, kernel_names
from ..problem import AttentionFamily, AttentionProblem
from ..store.journal import Journal
from ..store.table import FamilyTable
from ..store.trial import Trial
from .machines import Machines
from .measured import measure_families, measured_grid, measured_table, sizes_without_time
from .modelled import Compiled, Progress, compile_families, modelled_table
from .staged import Effort, search_cell, search_cell_exhaustively

SEARCHES = {"staged": search_cell, "exhaustive": search_cell_exhaustively}
"""The strategies of a cell, by name."""

_BUILD_SECONDS = 600.0


@dataclass(frozen=True)
class Tuned:
    """The tables of families, why others got none, the trials by status, and whether there was time for all of them.

    ``measuring_seconds`` is how long the GPUs were checking and timing, all together; 0 without them. ``without_time``
    are the sizes at which everything that a complete run tried has failed.
    """

    tables: Sequence[FamilyTable]
    failed: Mapping[AttentionFamily, str]
    trials: Mapping[str, int]
    complete: bool
    measuring_seconds: float = 0.0
    without_time: Sequence[AttentionProblem] = ()


def tune(
    families: Sequence[AttentionFamily],
    arch: ArchSpec,
    journal: Journal,
    machines: Machines,
    *,
    on_device: bool,
    search: str = "staged",
    configs_per_family: int = 20,
    time_limit: float = 60.0,
    jobs: int | None = None,
    deadline: float | None = None,
    progress: Progress = lambda done, total, text: None,
) -> Tuned:
    """Run the trials that the journal lacks, on the GPUs of the machines or by compiling alone, and build the tables.

    Args:
        search: a name in :data:`SEARCHES`; with ``on_device`` only.
        configs_per_family: compilations besides the rules'.
        time_limit: seconds per compilation.
        jobs: compilations at a time; None: one for each core of the machines.
        deadline: a ``time.monotonic()`` value at which no more trials are begun.

    Raises:
        JournalError: the journal cannot be read or written.
        WorkerStartError: a worker could not start, for example because there is no such device.
        MachineError: a worker's disk is full, or it may not write what it must.
    """
    common: dict[str, Any] = {
        "configs_per_family": configs_per_family,
        "time_limit": time_limit,
        "jobs": jobs or machines.cpus,
        "deadline": deadline,
        "progress": progress,
    }
    if on_device:
        run = measure_families(
            families, arch, journal, machines=machines, search=SEARCHES[search], effort=Effort(), **common
        )
        tables, failed = _build(_measured, [(item, run.trials, arch) for item in families], jobs, progress)
        statuses = Counter(trial.status for trial in run.trials.values())
        failed_sizes = [
            problem
            for family in families
            if run.complete and family not in failed
            for problem in sizes_without_time(family, run.trials, arch, measured_grid(family))
        ]
        return Tuned(tables, failed, statuses, run.complete, run.measuring_seconds, failed_sizes)
    state, complete = compile_families(families, arch, journal, runner=machines.run_tasks, **common)
    tables, failed = _build(_modelled, [(item, compiled, arch) for item, compiled in state.items()], jobs, progress)
    statuses = Counter(status for compiled in state.values() for status in compiled.status.values())
    return Tuned(tables, failed, statuses, complete)


def _build(
    build: Callable[[Any], FamilyTable], tasks: Sequence[tuple[AttentionFamily, Any, ArchSpec]], jobs: int | None,
    progress: Progress,
) -> tuple[list[FamilyTable], dict[AttentionFamily, str]]:  # fmt: skip
    """The tables of all families, built in parallel on this machine, and why the other families got none."""
    workers = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    tables: list[FamilyTable] = []
    failed: dict[AttentionFamily, str] = {}
    for done, (task, outcome) in enumerate(run_tasks(build, tasks, workers=workers, time_limit=_BUILD_SECONDS), 1):
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


def _modelled(task: tuple[AttentionFamily, Compiled, ArchSpec]) -> FamilyTable:
    return modelled_table(task[0], task[1].resources, task[2])


def _measured(task: tuple[AttentionFamily, dict[str, Trial], ArchSpec]) -> FamilyTable:
    return measured_table(*task)
