"""The machines of a Ray cluster, with the workers that this machine would have.

Ray places the work, and what was lost with a machine is asked once more elsewhere. What runs on a machine is a killable
worker, as here, so that a candidate that hangs or aborts takes neither Ray's process nor the sweep with it.
"""

from __future__ import annotations

import logging
import math
import pickle
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any, Generic, TypeVar

from ..arch import ArchSpec
from ..device import LocalDevice, local_device
from ..evaluate.measure import measure
from ..evaluate.workers import MachineError, Outcome, SoleWorker, StoppedError, WorkerStartError
from .machines import Machines, Worker, WorkerGoneError
from .modelled import environment

T = TypeVar("T")
R = TypeVar("R")

_RETRIES = 1  # of a task whose machine or Ray process was lost
_STOP_INTERVAL = 0.2  # seconds between two looks at a worker's event
PLACEMENT_SECONDS = 120.0
"""How long a worker waits for a GPU of the cluster."""


@contextmanager
def ray_cluster(address: str) -> Iterator[Machines]:
    """The machines of the cluster at an address: ``auto`` for the one of this machine, ``local`` for one made for now.

    attn-tune must be installed on each, in the same versions; a worker that finds others says so.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("--ray needs Ray: pip install 'attn-tune[ray]'") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"--ray {address}: {_first_line(error)}") from error
    try:
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        yield Machines(
            "the cluster",
            cpus=int(resources.get("CPU", 1)),
            gpus=[_gpu_worker] * gpus,
            find_device=partial(_find_device, gpus),
            run_tasks=run_tasks_on_ray,
        )
    finally:
        ray.shutdown()


class RayWorker(Generic[T, R]):
    """A worker on some machine of the cluster with a free GPU, asked as :class:`~..evaluate.workers.SoleWorker` is.

    If its machine is lost it starts on another and asks again; the task fails as a crash when that is lost, too.
    """

    def __init__(
        self, function: Callable[[T], R], initializer: Callable[[], object] | None, stop: threading.Event
    ) -> None:
        self._setup = pickle.dumps((function, initializer))
        self._stop = stop
        self._actor: Any = None

    def ask(self, task: T, time_limit: float) -> Outcome[R]:
        """The outcome of one task, which may take ``time_limit`` seconds once it has a machine.

        Raises:
            WorkerGoneError: no GPU of the cluster became free for it.
            WorkerStartError: the worker failed before its first task, or its machine has other versions.
            MachineError: its disk is full, or it may not write what it must.
            StoppedError: ``stop`` was set before the outcome was there.
        """
        reason = ""
        for _ in range(1 + _RETRIES):
            try:
                if self._actor is None:
                    self._start()
                outcome: Outcome[R] = self._wait(self._actor.ask.remote(task, time_limit), math.inf)
                return outcome
            except LostError as error:
                reason = str(error)
                self.close()
        return Outcome("crash", None, f"lost with its machine: {reason}", 0.0)

    def _start(self) -> None:
        import ray

        host = ray.remote(num_cpus=0, num_gpus=1)(_Host)
        self._actor = host.remote(environment(), self._setup)
        try:
            self._wait(self._actor.ready.remote(), PLACEMENT_SECONDS)
        except LostError as error:  # also where attn-tune is not installed
            self.close()
            raise WorkerStartError(f"a worker could not start on a machine of the cluster: {error}") from error

    def _wait(self, reference: Any, seconds: float) -> Any:
        import ray

        end = time.monotonic() + seconds
        while not ray.wait([reference], timeout=_STOP_INTERVAL)[0]:
            if self._stop.is_set():
                self.close()
                raise StoppedError
            if time.monotonic() > end:
                self.close()
                raise WorkerGoneError(f"no GPU of the cluster became free within {seconds:g} s")
        return _result(reference)

    def close(self) -> None:
        """Kill the worker, if there is one."""
        import ray

        if self._actor is not None and ray.is_initialized():
            ray.kill(self._actor)
        self._actor = None

    def __enter__(self) -> RayWorker[T, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_tasks_on_ray(
    function: Callable[[T], R],
    tasks: Iterable[T],
    *,
    workers: int,
    time_limit: float,
    initializer: Callable[[], object] | None = None,
) -> Generator[tuple[T, Outcome[R]], None, None]:
    """Like :func:`~..evaluate.workers.run_tasks`, on the cores of the cluster: at most ``workers`` tasks at a time."""
    import ray

    run = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run)
    setup = environment(), pickle.dumps((function, initializer))
    waiting = iter(tasks)
    pending: dict[Any, T] = {}
    try:
        while True:
            for task in islice(waiting, workers - len(pending)):
                pending[run.remote(*setup, task, time_limit)] = task
            if not pending or not ray.is_initialized():  # a thread may be left behind when the cluster is
                return
            for done in ray.wait(list(pending), timeout=_STOP_INTERVAL)[0]:
                task = pending.pop(done)
                try:
                    outcome = _result(done)
                except LostError as error:
                    outcome = Outcome("crash", None, f"lost with its machine: {error}", 0.0)
                yield task, outcome
    finally:
        for reference in pending if ray.is_initialized() else ():
            ray.cancel(reference, force=True)


def _gpu_worker(arch: ArchSpec, stop: threading.Event) -> Worker:
    return RayWorker(measure, partial(_require_arch, arch), stop)


def _require_arch(arch: ArchSpec) -> None:
    """Keep a worker from starting on a GPU that is not of the arch or has another number of units."""
    device = local_device()
    if device is None or (device.arch, device.compute_units) != (arch.name, arch.compute_units):
        found = f"{device.arch} with {device.compute_units} compute units" if device else "no GPU"
        raise RuntimeError(f"{socket.gethostname()} has {found}, not {arch.name} with {arch.compute_units}")


class _Host:
    """The cluster's side of a :class:`RayWorker`."""

    def __init__(self, versions: Mapping[str, str], setup: bytes) -> None:
        self._setup = versions, setup

    def ready(self) -> None:
        """Answers once there is a machine."""

    def ask(self, task: Any, time_limit: float) -> Outcome[Any]:
        return _run(*self._setup, task, time_limit)


def _run(versions: Mapping[str, str], setup: bytes, task: Any, time_limit: float) -> Outcome[Any]:
    """One task on a machine of the cluster, in a worker that stays for the next one."""
    _check_versions(versions)
    return _sole_worker(setup).ask(task, time_limit)


@cache
def _sole_worker(setup: bytes) -> SoleWorker[Any, Any]:
    try:
        return SoleWorker(*pickle.loads(setup))
    except (ImportError, AttributeError) as error:
        raise WorkerStartError(f"{socket.gethostname()} cannot load the task's code: {error}") from error


def _check_versions(expected: Mapping[str, str]) -> None:
    own = environment()
    for name, version in expected.items():
        if own.get(name) != version:
            raise WorkerStartError(f"{socket.gethostname()} has {name} {own.get(name)}, where the sweep has {version}")


class LostError(Exception):
    """A task was lost with its machine or with Ray's process there."""


def _result(reference: Any) -> Any:
    """What a task returned. Raises LostError, or what kept the machine from running any task."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, (WorkerStartError, MachineError)):
            raise error.cause from None
        raise WorkerStartError(f"a machine of the cluster cannot run tasks: {error.cause!r}") from error
    except ray.exceptions.OutOfDiskError as error:
        raise MachineError(f"a machine of the cluster cannot go on: {_first_line(error)}") from error
    except ray.exceptions.RayError as error:
        raise LostError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _find_device(gpus: int) -> LocalDevice | None:
    """The GPU of a machine of the cluster."""
    import ray

    if not gpus:
        return None
    try:
        device: LocalDevice | None = ray.get(
            ray.remote(num_cpus=0, num_gpus=1)(_device_here).remote(), timeout=PLACEMENT_SECONDS
        )
    except ray.exceptions.GetTimeoutError:
        raise ValueError(f"--ray: no GPU of the cluster became free within {PLACEMENT_SECONDS:g} s") from None
    return device


def _device_here() -> LocalDevice | None:
    return local_device()
