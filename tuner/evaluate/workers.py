"""A pool of worker processes that can be killed: whatever candidate code does, the caller gets an outcome.

Compilers and kernels hang, abort and run out of memory. Each task therefore runs in a process with a group of its own,
which is killed as a whole when its time is up and replaced for the next task. A worker serves many tasks, so that slow
imports happen once.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from typing import Any, Generic, Protocol, TypeVar

from .process import MachineError, Outcome, Worker, WorkerStartError

__all__ = [
    "MachineError",
    "Outcome",
    "SoleWorker",
    "StoppedError",
    "TaskRunner",
    "TaskWorker",
    "WorkerStartError",
    "run_tasks",
]

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)

TaskRunner = Callable[..., Generator[tuple[Any, "Outcome[Any]"], None, None]]
"""What runs many tasks, as :func:`run_tasks` does."""


class TaskWorker(AbstractContextManager["TaskWorker[T_contra, R]"], Protocol[T_contra, R]):
    """A worker that is asked one task at a time, as :class:`SoleWorker`."""

    def ask(self, task: T_contra, time_limit: float) -> Outcome[R]:
        """The outcome of one task. Raises WorkerStartError, MachineError or StoppedError, as :class:`SoleWorker`."""

    def close(self) -> None:
        """Kill the worker, if there is one; the next task starts another."""


def run_tasks(
    function: Callable[[T], R],
    tasks: Iterable[T],
    *,
    workers: int,
    time_limit: float,
    initializer: Callable[[], object] | None = None,
    memory_limit_bytes: int | None = None,
) -> Generator[tuple[T, Outcome[R]], None, None]:
    """Run ``function`` on every task in ``workers`` processes and yield each task with its outcome as it completes.

    Tasks are taken from the iterable only when a worker is free. ``time_limit`` is in seconds per task and does not
    count a worker's start. ``memory_limit_bytes`` limits the private memory of a worker (RLIMIT_DATA). What a worker
    prints is kept from the terminal; its last line is part of a crash's message. Closing the generator kills all
    workers, and so does the death of this process; iterate from one thread, whose end also ends the workers.

    Args:
        function: importable by name from a module (not a lambda or a local function).

    Raises:
        ValueError: workers or time_limit is not positive.
        WorkerStartError: a worker died or failed before its first task.
        MachineError: a worker's disk is full, or it may not write what it must.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers!r}")
    if not time_limit > 0:
        raise ValueError(f"time_limit must be positive, not {time_limit!r}")
    return _run(function, iter(tasks), workers, time_limit, initializer, memory_limit_bytes)


def _run(
    function: Callable[[T], R],
    tasks: Iterator[T],
    workers: int,
    time_limit: float,
    initializer: Callable[[], object] | None,
    memory_limit_bytes: int | None,
) -> Generator[tuple[T, Outcome[R]], None, None]:
    pool: list[Worker[T, R]] = []
    done: list[tuple[T, Outcome[R]]] = []
    more = True
    try:
        while True:
            while more and sum(worker.task is not None for worker in pool) < workers:
                try:
                    task = next(tasks)
                except StopIteration:
                    more = False
                    break
                idle = next((worker for worker in pool if worker.task is None), None)
                if idle is not None and not idle.process.is_alive():  # killed from outside: not the next task's fault
                    idle.kill()
                    pool.remove(idle)
                    idle = None
                if idle is None:
                    idle = Worker(pickle.dumps((function, initializer)), memory_limit_bytes)
                    pool.append(idle)
                idle.assign(task, time_limit)
            # Freed workers got their next task first, so that they compute while the caller looks at the results.
            yield from done
            done.clear()
            busy = [worker for worker in pool if worker.task is not None]
            if not busy:
                return
            first_deadline = min(worker.deadline for worker in busy)
            signs = [sign for worker in busy for sign in (worker.connection, worker.process.sentinel)]
            wait(signs, max(first_deadline - time.monotonic(), 0))
            for worker in busy:
                outcome = worker.poll()
                if outcome is None or worker.task is None:
                    continue
                done.append((worker.task[0], outcome))
                worker.task = None
                if not worker.alive:
                    worker.kill()
                    pool.remove(worker)
    finally:
        for worker in pool:
            worker.kill()


class StoppedError(Exception):
    """A task was given up, without an outcome, because its caller wants to stop."""


_STOP_INTERVAL = 0.2  # seconds between two looks at the event of a worker that can be stopped


class SoleWorker(Generic[T, R]):
    """One killable worker that is asked one task at a time, for searches whose next task depends on the last outcome.

    It keeps its state from task to task, unless one kills it: then the next task starts a new one. Use it from one
    thread, as a context manager; another thread may set ``stop`` to have the running task killed.
    """

    def __init__(
        self,
        function: Callable[[T], R],
        initializer: Callable[[], object] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._setup = pickle.dumps((function, initializer))
        self._worker: Worker[T, R] | None = None
        self._stop = stop

    def ask(self, task: T, time_limit: float) -> Outcome[R]:
        """The outcome of one task; a worker that exceeds ``time_limit`` seconds is killed.

        Raises:
            WorkerStartError: the worker died or failed before its first task.
            MachineError: its disk is full, or it may not write what it must.
            StoppedError: ``stop`` was set before the outcome was there.
        """
        if self._worker is None or not self._worker.process.is_alive():
            self.close()
            self._worker = Worker(self._setup, None)
        worker = self._worker
        worker.assign(task, time_limit)
        outcome = None
        while outcome is None:
            if self._stop is not None and self._stop.is_set():
                self.close()
                raise StoppedError
            patience = max(worker.deadline - time.monotonic(), 0)
            wait(
                [worker.connection, worker.process.sentinel],
                patience if self._stop is None else min(patience, _STOP_INTERVAL),
            )
            outcome = worker.poll()
        worker.task = None
        if not worker.alive:
            self.close()
        return outcome

    def close(self) -> None:
        """Kill the worker, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> SoleWorker[T, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
