"""Where the trials of a sweep run: this machine, or the machines of a cluster."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..arch import ArchSpec
from ..device import LocalDevice, local_device
from ..evaluate.measure import Measurement, MeasureTask, measure
from ..evaluate.workers import SoleWorker, TaskRunner, TaskWorker, WorkerStartError, run_tasks


class WorkerGoneError(WorkerStartError):
    """A GPU is no longer there for its worker, while others may be."""


Worker = TaskWorker[MeasureTask, list[Measurement]]
"""What measures on one GPU."""

WorkerMaker = Callable[[ArchSpec, threading.Event], Worker]
"""Makes a worker for a GPU of an arch, which gives its task up when the event is set."""


@dataclass(frozen=True)
class Machines:
    """``cpus`` tasks compile at once, by ``run_tasks``; each of ``gpus`` measures; ``find_device`` describes one."""

    name: str
    cpus: int
    gpus: Sequence[WorkerMaker]
    find_device: Callable[[], LocalDevice | None]
    run_tasks: TaskRunner = run_tasks


def this_machine(devices: str = "0") -> Machines:
    """The local cores, and the GPUs of ``all`` or of indices such as ``0,1``. Raises ValueError for anything else."""
    cpus = len(os.sched_getaffinity(0))
    return Machines("this machine", cpus, [partial(_gpu_worker, i) for i in _indices(devices)], local_device)


def _indices(devices: str) -> list[int]:
    if devices == "all":
        import torch

        if not torch.cuda.device_count():
            raise ValueError("--devices all: torch finds no GPU")
        return list(range(torch.cuda.device_count()))
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", devices):
        raise ValueError(f"--devices must be all or indices such as 0,1, not {devices!r}")
    return sorted({int(part) for part in devices.split(",")})


def _gpu_worker(device: int, _arch: ArchSpec, stop: threading.Event) -> Worker:
    return SoleWorker(measure, partial(_use_device, device), stop)


def _use_device(device: int) -> None:
    """Make this process, a worker, use one GPU."""
    import torch

    torch.cuda.set_device(device)
