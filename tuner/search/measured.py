"""Tune on the GPU at hand: compile in the background while the GPU checks and times, cell after cell."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ..arch import ArchSpec
from ..evaluate.resources import Resources
from ..evaluate.workers import StoppedError
from ..problem import AttentionFamily, AttentionProblem
from ..store.build import Candidate, build_family
from ..store.journal import Journal
from ..store.table import FamilyTable, Sizes
from ..store.trial import Trial
from .machines import Machines, WorkerGoneError, WorkerMaker
from .measure_cell import RACE_POLICY, TIME_LIMITS, MeasuredRun, TimeLimits, measure_cell
from .modelled import Progress, compile_families, environment
from .predictions import Compilation
from .staged import Effort, Identity, Search, identity, rule_keys, search_cell
from .tables import table_config

__all__ = ["RACE_POLICY", "MeasuredRun", "measure_families", "measured_grid", "measured_table"]

MAX_CACHE_BYTES = 80e9
_DECODE_KEYS = (256, 1024, 2048, 8192, 32768, 131072)
_VERIFY_KEYS = (256, 1024, 8192, 70000)
_CHUNK_KEYS = (512, 1024, 8192, 65536)
_COMPILER_PATIENCE = 5.0  # seconds that a stopped run waits for a compilation under way, which then ends on its own


def measured_grid(family: AttentionFamily) -> list[AttentionProblem]:
    """The sizes that are timed, from decode at batch 1 to prefill, as memory allows: more than the benchmark cells.

    A row answers for sizes in between as well, so no gap may be as wide as that between 8 and 2048 query tokens.
    """
    sizes = [(seqs, 1, keys) for seqs in (1, 2, 4, 8, 16, 32, 64, 128, 256) for keys in _DECODE_KEYS]
    sizes += [(seqs, q, keys) for seqs in (1, 2, 4, 8, 20, 64) for q in (2, 4, 8, 16) for keys in _VERIFY_KEYS]
    sizes += [(seqs, q, keys) for seqs in (1, 4, 16) for q in (64, 512) for keys in _CHUNK_KEYS]
    sizes += [(1, 4096, 4096), (4, 2048, 2048), (1, 2048, 32768)]
    problems = [AttentionProblem(family, *size) for size in sizes]
    return [problem for problem in problems if cache_bytes(problem) <= MAX_CACHE_BYTES]


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
    machines: Machines,
    search: Search = search_cell,
    grid: Callable[[AttentionFamily], list[AttentionProblem]] = measured_grid,
    deadline: float | None = None,
    progress: Progress = lambda done, total, text: None,
    limits: TimeLimits = TIME_LIMITS,
) -> MeasuredRun:
    """Measure every family, with one worker for each GPU of the machines.

    Every measurement is a trial in the journal, and what is there is not measured again. A run that ends early, by the
    deadline or by an exception such as KeyboardInterrupt, loses the tasks in flight only.

    Args:
        time_limit: seconds per compilation; ``limits`` are those of measuring.
        search: the strategy of a cell.
        grid: the sizes of a family.
        deadline: a ``time.monotonic()`` value at which the run stops with what it has.

    Raises:
        JournalError: the journal cannot be read or written.
        WorkerStartError: a worker could not start, for example because there is no such device.
        MachineError: a worker's disk is full, or it may not write what it must.
    """
    known = journal.load()
    run = MeasuredRun(dict(known))
    grids = {family: grid(family) for family in families}
    total = sum(len(problems) for problems in grids.values())
    cells: queue.Queue[tuple[AttentionProblem, Mapping[Compilation, Resources]] | None] = queue.Queue()
    stop = threading.Event()
    failures: list[BaseException] = []
    gpus = len(machines.gpus)
    done = threading.Semaphore(0)

    def late() -> bool:
        return stop.is_set() or (deadline is not None and time.monotonic() > deadline)

    def check_time(*_: object) -> None:
        if late():
            raise StoppedError

    def compile_ahead() -> None:
        for family in families:
            compiled, _ = compile_families(
                [family], arch, journal,
                configs_per_family=configs_per_family, time_limit=time_limit, jobs=jobs, runner=machines.run_tasks,
                known=known, progress=check_time,
            )  # fmt: skip
            for problem in sorted(grids[family], key=cache_bytes):
                cells.put((problem, compiled[family].resources))

    def work(make_worker: WorkerMaker) -> None:
        with make_worker(arch, stop) as worker:
            while (item := cells.get()) is not None:
                check_time()
                try:
                    measure_cell(*item, arch, journal, run, worker, partial(search, effort=effort), limits, check_time)
                except WorkerGoneError:
                    if not leaves_others():
                        raise
                    cells.put(item)
                    return
                done.release()

    def leaves_others() -> bool:
        """One GPU less; whether any is left."""
        nonlocal gpus
        with run.lock:
            gpus -= 1
            return gpus > 0

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except StoppedError:
            pass
        except BaseException as error:
            failures.append(error)
            stop.set()

    # A daemon, because a compilation may hang until its limit: leaving must not wait for that.
    compiler = threading.Thread(target=guarded, args=(compile_ahead,), daemon=True)
    workers = [threading.Thread(target=guarded, args=(partial(work, gpu),)) for gpu in machines.gpus]
    finished = 0
    try:
        for thread in (compiler, *workers):
            thread.start()
        while finished < total and not late():
            finished += done.acquire(timeout=0.2)
            progress(finished, total, f"measuring, {run.new_trials} new trials")
    finally:
        stop.set()
        for _ in workers:
            cells.put(None)
        for thread in workers:
            thread.join()
        compiler.join(_COMPILER_PATIENCE)
        while done.acquire(blocking=False):
            finished += 1
    if failures:
        raise failures[0]
    run.complete = finished == total
    return run


def sizes_without_time(
    family: AttentionFamily, trials: Mapping[str, Trial], arch: ArchSpec, problems: Sequence[AttentionProblem]
) -> list[AttentionProblem]:
    """The sizes at which no configuration of a family has a valid time: their neighbours' rows answer for them."""
    timed = {sizes for sizes, _, _ in _finals(family, trials, arch)}
    return [problem for problem in problems if problem.sizes not in timed]


def measured_table(
    family: AttentionFamily, trials: Mapping[str, Trial], arch: ArchSpec, tolerance: float = 0.02
) -> FamilyTable:
    """The table of a family from the finals in the journal.

    Raises:
        ValueError: no cell has a valid trial.
    """
    cells: dict[Sizes, list[Candidate]] = {}
    rules: dict[Sizes, dict[str, Identity]] = {}
    for sizes, us, trial in _finals(family, trials, arch):
        problem = AttentionProblem(family, *sizes)
        if sizes not in rules:
            rules[sizes] = {name: identity(key) for name, key in rule_keys(problem, arch).items()}
        own = identity((trial.kernel, tuple(trial.config.items())))
        names = tuple(name for name, rule in rules[sizes].items() if rule == own)
        config = table_config(trial.kernel, trial.config, problem, arch)
        cells.setdefault(sizes, []).append(
            Candidate(trial.kernel, config, us, "measured", trial.spread, trial.samples, trial.error, names)
        )
    return build_family(family, cells, tolerance)


def _finals(
    family: AttentionFamily, trials: Mapping[str, Trial], arch: ArchSpec
) -> Iterator[tuple[Sizes, float, Trial]]:
    """The sizes, microseconds and trials of valid finals with the versions at hand."""
    current = environment() | {"policy": RACE_POLICY}
    for trial in trials.values():
        same = all(trial.environment.get(name) == current[name] for name in ("triton", "kernels", "policy"))
        device = (trial.arch, trial.compute_units) == (arch.name, arch.compute_units)
        if trial.family == family and trial.sizes and trial.us and trial.status == "ok" and same and device:
            yield trial.sizes, trial.us, trial
