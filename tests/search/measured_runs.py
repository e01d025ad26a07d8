"""Runs of ``measure_families`` whose workers run stubs, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from estimates import estimated
from measure_tasks import Stub, use_device

from attn_tune.arch import get_arch
from attn_tune.evaluate.workers import SoleWorker
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.machines import Machines, WorkerMaker
from attn_tune.search.measure_cell import TimeLimits
from attn_tune.search.measured import MeasuredRun, measure_families
from attn_tune.search.modelled import environment
from attn_tune.search.propose import rule_compilations
from attn_tune.search.staged import Effort, Key
from attn_tune.store.journal import Journal
from attn_tune.store.trial import Trial

ARCH = get_arch("sm_90")
FAMILY = AttentionFamily(16, 1, 128)
PROBLEMS = [AttentionProblem(FAMILY, 1, 1, 8192), AttentionProblem(FAMILY, 8, 4, 8192)]
EFFORT = Effort(favourites=4, second_looks=2, finalists=3, within=2.0)


def grid(family: AttentionFamily) -> list[AttentionProblem]:
    """Two sizes instead of the benchmark's."""
    return PROBLEMS


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal in which the rules' compilations are done, so that none is left."""
    journal = Journal(tmp_path / "sm_90.trials.jsonl")
    for key, resources in estimated(rule_compilations(FAMILY, ARCH), FAMILY, ARCH).items():
        journal.append(
            Trial(
                FAMILY, None, key[0], dict(key[1]), ARCH.name, ARCH.compute_units, "ok", "modelled",
                resources=resources.to_dict(), environment=environment(),
            )
        )  # fmt: skip
    return journal


def run(journal: Journal, stub: Stub, **changes: Any) -> MeasuredRun:
    arguments: dict[str, Any] = {
        "configs_per_family": 1,  # the rules' alone
        "time_limit": 60.0,
        "jobs": 1,
        "effort": EFFORT,
        "grid": grid,
        "machines": stub_machines(stub),
        "limits": TimeLimits(0.7, 0.1),
    }
    return measure_families([FAMILY], ARCH, journal, **arguments | changes)


def stub_machines(stub: Stub, gpus: int = 1, initializer: Callable[[int], None] = use_device) -> Machines:
    """This machine, with made-up GPUs that run a stub."""

    def maker(device: int) -> WorkerMaker:
        return lambda arch, stop: SoleWorker(stub, partial(initializer, device), stop)

    return Machines("this machine", 1, [maker(device) for device in range(gpus)], lambda: None)


def log_lines(path: str | Path) -> list[list[str]]:
    """The stub's log, split into its fields; empty before the first task."""
    return [line.split("\t") for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def measured(journal: Journal, policy: str) -> list[Trial]:
    """The journal's measured trials of one policy."""
    trials = journal.load().values()
    return [trial for trial in trials if trial.sizes and trial.environment["policy"] == policy]


def key_of(trial: Trial) -> Key:
    return trial.kernel, tuple(trial.config.items())


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")
