"""Tune on the GPU at hand: compile in the background while the GPU checks and times, cell after cell.

Every measurement is a trial in the journal. A cell whose final is in the journal is not measured again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..arch import ArchSpec
from ..evaluate.measure import Cell, Measurement, MeasureTask, measure
from ..evaluate.resources import Resources
from ..evaluate.timing import POLICY
from ..evaluate.workers import SoleWorker
from ..problem import AttentionFamily, AttentionProblem
from ..store.build import Candidate, build_family
from ..store.journal import Journal
from ..store.table import FamilyTable, Sizes
from ..store.trial import Trial
from .modelled import Progress, compile_families, environment
from .predictions import Compilation, rule_configs
from .staged import Effort, Key, Search, full_key, search_cell

SCREEN_POLICY = f"{POLICY}/screen"
RACE_POLICY = f"{POLICY}/race"
_TASK_SECONDS = 60.0  # of preparing a cell
_CONFIG_SECONDS = 10.0  # of one configuration, compiling what the background has not yet


@dataclass
class MeasuredRun:
    """The trials of a run and what it cost."""

    trials: dict[str, Trial]
    new_trials: int = 0
    measuring_seconds: float = 0.0
    complete: bool = True
    status: dict[AttentionFamily, dict[Key, str]] = field(default_factory=dict)


def measured_grid(family: AttentionFamily) -> list[AttentionProblem]:
    """The sizes that are timed: those of the benchmark cells, from decode at batch 1 to prefill, as memory allows."""
    sizes = [(seqs, 1, keys) for seqs in (1, 8, 32, 128) for keys in (1024, 8192, 32768, 131072)]
    sizes += [(seqs, q, keys) for seqs in (1, 8, 20, 64) for q in (2, 4, 8) for keys in (1024, 8192, 70000)]
    sizes += [(1, 4096, 4096), (4, 2048, 2048), (1, 2048, 32768)]
    problems = [AttentionProblem(family, *size) for size in sizes]
    return [problem for problem in problems if cache_bytes(problem) <= MAX_CACHE_BYTES]


MAX_CACHE_BYTES = 80e9


def cache_bytes(problem: AttentionProblem) -> float:
    """Bytes of keys and values that a problem holds."""
    return float(problem.num_seqs * problem.max_seqlen_k * problem.family.bytes_per_token)


def measure_families(
    families: Sequence[AttentionFamily],
    arch: ArchSpec,
    journal: Journal,
    *,
    configs_per_family: int,
    time_limit: float,
    jobs: int | None,
    effort: Effort,
    devices: Sequence[int] = (0,),
    search: Search = search_cell,
    grid: Callable[[AttentionFamily], list[AttentionProblem]] | None = None,
    deadline: float | None = None,
    progress: Progress = lambda done, total, text: None,
) -> MeasuredRun:
    """Measure every family on local GPUs, one worker for each device.

    ``grid`` gives the sizes of a family, by default :func:`measured_grid`; ``search`` is the strategy of a cell.

    Raises:
        JournalError: the journal cannot be read or written.
    """
    run = MeasuredRun(journal.load())
    grids = {family: (grid or measured_grid)(family) for family in families}
    total = sum(len(grid) for grid in grids.values())
    cells: queue.Queue[tuple[AttentionProblem, Mapping[Compilation, Resources]] | None] = queue.Queue()
    stop = threading.Event()
    failures: list[BaseException] = []
    done = threading.Semaphore(0)

    def late() -> bool:
        return stop.is_set() or (deadline is not None and time.monotonic() > deadline)

    def compile_ahead() -> None:
        for family in families:
            if late():
                return
            compiled, _ = compile_families(
                [family], arch, journal,
                configs_per_family=configs_per_family, time_limit=time_limit, jobs=jobs, deadline=deadline,
            )  # fmt: skip
            for problem in sorted(grids[family], key=cache_bytes):
                cells.put((problem, compiled[family].resources))

    def work(device: int) -> None:
        with SoleWorker(measure, partial(_use_device, device)) as worker:
            while (item := cells.get()) is not None:
                if late():
                    run.complete = False
                else:
                    _measure_cell(*item, arch, journal, run, worker, partial(search, effort=effort))
                done.release()

    def guarded(function: partial[None]) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)
            stop.set()

    compiler = threading.Thread(target=guarded, args=(partial(compile_ahead),))
    threads = [threading.Thread(target=guarded, args=(partial(work, device),)) for device in devices]
    for thread in (compiler, *threads):
        thread.start()
    try:
        finished = 0
        while finished < total and not failures:
            if done.acquire(timeout=0.5):
                finished += 1
            progress(finished, total, f"measuring, {run.new_trials} new trials")
            if not compiler.is_alive() and cells.empty() and late():
                break
    finally:
        stop.set()
        for _ in threads:
            cells.put(None)
        for thread in (compiler, *threads):
            thread.join()
    if failures:
        raise failures[0]
    run.complete = run.complete and finished == total
    return run


def _use_device(device: int) -> None:
    import torch

    torch.cuda.set_device(device)


def _measure_cell(
    problem: AttentionProblem,
    compiled: Mapping[Compilation, Resources],
    arch: ArchSpec,
    journal: Journal,
    run: MeasuredRun,
    worker: SoleWorker[MeasureTask, list[Measurement]],
    search: Callable[..., object],
) -> None:
    cell = Cell(problem, arch.name)

    def evaluate(keys: Sequence[Key], careful: bool) -> list[Measurement]:
        known = [run.trials.get(_trial(problem, key, arch, careful).identity) for key in keys]
        if careful and any(trial is None for trial in known):
            known = [None] * len(keys)  # times are comparable within one final only
        missing = [key for key, trial in zip(keys, known, strict=True) if trial is None]
        begin = time.monotonic()
        fresh = iter(_ask(worker, cell, missing, careful))
        results = []
        for key, trial in zip(keys, known, strict=True):
            if trial is None:
                measurement = next(fresh)
                trial = _trial(problem, key, arch, careful, measurement)
                journal.append(trial)
                run.trials[trial.identity] = trial
                run.new_trials += 1
            results.append(Measurement(trial.status, trial.us, trial.spread, trial.samples, trial.error, trial.message))
        run.measuring_seconds += time.monotonic() - begin
        return results

    search(problem, compiled, arch, evaluate)


def _ask(
    worker: SoleWorker[MeasureTask, list[Measurement]], cell: Cell, keys: Sequence[Key], careful: bool
) -> Iterator[Measurement]:
    """Measurements of some configurations: screened one by one, so that a bad one takes nothing else with it."""
    if careful and len(keys) > 1:
        outcome = worker.ask(MeasureTask(cell, tuple(keys), True), _TASK_SECONDS + _CONFIG_SECONDS * len(keys))
        if outcome.value is not None:
            yield from outcome.value
            return
    for key in keys:
        outcome = worker.ask(MeasureTask(cell, (key,), careful), _TASK_SECONDS + _CONFIG_SECONDS)
        if outcome.value is not None:
            yield outcome.value[0]
        else:
            status = "crash" if outcome.status == "error" else outcome.status
            yield Measurement(status, message=outcome.message)


def measured_table(
    family: AttentionFamily, trials: Mapping[str, Trial], arch: ArchSpec, tolerance: float = 0.02
) -> FamilyTable:
    """The table of a family from the finals in the journal.

    Raises:
        ValueError: no cell has a valid trial.
    """
    cells: dict[Sizes, list[Candidate]] = {}
    current = environment() | {"policy": RACE_POLICY}
    for trial in trials.values():
        same = all(trial.environment.get(name) == current[name] for name in ("triton", "kernels", "policy"))
        if trial.family != family or trial.sizes is None or trial.status != "ok" or not same or trial.us is None:
            continue
        if trial.arch != arch.name:
            continue
        rules = rule_configs(AttentionProblem(family, *trial.sizes), arch)
        key = (trial.kernel, frozenset(trial.config.items()))
        names = tuple(name for name, (rule, segments) in rules.items() if _same(full_key(rule, segments), key))
        cells.setdefault(trial.sizes, []).append(
            Candidate(trial.kernel, trial.config, trial.us, "measured", trial.spread, trial.samples, trial.error, names)
        )
    return build_family(family, cells, tolerance)


def _same(full: Key, key: tuple[str, frozenset[tuple[str, int]]]) -> bool:
    return full[0] == key[0] and frozenset(full[1]) == key[1]


def _trial(
    problem: AttentionProblem, key: Key, arch: ArchSpec, careful: bool, measurement: Measurement | None = None
) -> Trial:
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
