"""Measure one cell through a worker: every outcome is a trial in the journal, and nothing there is measured again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..arch import ArchSpec
from ..evaluate.measure import Cell, Measurement, MeasureTask
from ..evaluate.resources import Resources
from ..evaluate.timing import POLICY
from ..problem import AttentionProblem
from ..store.journal import Journal
from ..store.trial import Trial
from .machines import Worker
from .modelled import environment
from .predictions import Compilation
from .staged import Key

SCREEN_POLICY = f"{POLICY}/screen"
RACE_POLICY = f"{POLICY}/race"


@dataclass(frozen=True)
class TimeLimits:
    """Seconds that a task may take: to prepare its cell, and for each configuration."""

    cell: float = 60.0
    config: float = 10.0  # compiling what the background has not yet


TIME_LIMITS = TimeLimits()


@dataclass
class MeasuredRun:
    """The trials of a run and what it cost. Threads hold the lock while they add to it."""

    trials: dict[str, Trial]
    new_trials: int = 0
    measuring_seconds: float = 0.0
    complete: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


def measure_cell(
    problem: AttentionProblem,
    compiled: Mapping[Compilation, Resources],
    arch: ArchSpec,
    journal: Journal,
    run: MeasuredRun,
    worker: Worker,
    search: Callable[..., object],
    limits: TimeLimits,
    check_time: Callable[[], None],
) -> None:
    """Search one cell, with what the journal and ``run`` know already.

    ``check_time`` is called before each task and may raise to end the search; what was measured by then is kept.

    Raises:
        JournalError: the journal cannot be written.
        WorkerStartError: the worker cannot start.
        MachineError: a worker's disk is full, or it may not write what it must.
    """
    cell = Cell(problem, arch.name)

    def evaluate(keys: Sequence[Key], careful: bool) -> list[Measurement]:
        known = [run.trials.get(_trial(problem, key, arch, careful).identity) for key in keys]
        if careful and any(trial is None for trial in known):
            known = [None] * len(keys)  # times are comparable within one final only
        results = dict(zip(keys, map(_measurement, known), strict=True))
        for batch in _batches([key for key in keys if results[key] is None], careful):
            check_time()
            begin = time.monotonic()
            fresh = ask(worker, cell, batch, careful, limits)
            with run.lock:
                run.measuring_seconds += time.monotonic() - begin
                for key, result in zip(batch, fresh, strict=True):
                    trial = _trial(problem, key, arch, careful, result)
                    journal.append(trial)
                    run.trials[trial.identity] = trial
                    run.new_trials += 1
                    results[key] = _measurement(trial)  # without the impossible times that a trial refuses
        return [result for result in results.values() if result is not None]

    search(problem, compiled, arch, evaluate)


def _batches(keys: Sequence[Key], careful: bool) -> list[Sequence[Key]]:
    """Finalists together, against each other; others one by one, so that a bad one takes nothing else with it."""
    return [keys] if careful and keys else [[key] for key in keys]


def ask(worker: Worker, cell: Cell, keys: Sequence[Key], careful: bool, limits: TimeLimits) -> list[Measurement]:
    """Measurements of some configurations of a cell in one task.

    If one of several takes the worker down, each is measured alone to find it, and the others again without it.

    Raises:
        StoppedError: the worker is to stop.
        WorkerStartError: the worker cannot start.
    """
    outcome = worker.ask(MeasureTask(cell, tuple(keys), careful), limits.cell + limits.config * len(keys))
    if outcome.value is not None:
        return outcome.value
    worker.close()  # after an error, too: the GPU's context may be lost, and every later task with it
    if len(keys) == 1:
        status = "crash" if outcome.status == "error" else outcome.status
        return [Measurement(status, message=outcome.message)]
    alone = {key: ask(worker, cell, [key], careful, limits)[0] for key in keys}
    sound = [key for key, result in alone.items() if result.status == "ok"]
    if 1 < len(sound) < len(keys):
        alone |= zip(sound, ask(worker, cell, sound, careful, limits), strict=True)
    return list(alone.values())


def _measurement(trial: Trial | None) -> Measurement | None:
    if trial is None:
        return None
    return Measurement(trial.status, trial.us, trial.spread, trial.samples, trial.error, trial.message)


def _trial(
    problem: AttentionProblem, key: Key, arch: ArchSpec, careful: bool, measurement: Measurement | None = None
) -> Trial:
    """A measurement as a trial; without one, a trial of the same identity."""
    result = measurement or Measurement("pruned")
    return Trial(
        family=problem.family,
        sizes=problem.sizes,
        kernel=key[0],
        config=dict(key[1]),
        arch=arch.name,
        compute_units=arch.compute_units,
        status=result.status,
        evidence="measured",
        us=result.us,
        spread=result.spread,
        samples=result.samples,
        error=result.error,
        message=result.message,
        environment=environment() | {"policy": RACE_POLICY if careful else SCREEN_POLICY} | dict(result.conditions),
    )
