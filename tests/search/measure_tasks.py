"""What workers run in place of measuring: made-up times, a log of what was asked, and faults on demand."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from attn_tune.evaluate.measure import Measurement, MeasureTask
from attn_tune.search.staged import Key
from attn_tune.testing.replay import Identity, identity

DEVICE = -1  # of this process, a worker
IMPOSSIBLE_TIMES = ("nan", "inf", "0", "-3.5")


def use_device(device: int) -> None:
    """An initializer that only notes the device."""
    global DEVICE
    DEVICE = device


def refuse_device(device: int) -> None:
    """An initializer that fails on device 1."""
    if device == 1:
        raise RuntimeError("no device 1")


@dataclass(frozen=True)
class Stub:
    """Answers a task with times that follow from the configurations.

    A line per configuration goes to the file ``log``: device, process, sizes, "race" or "screen", configuration.
    ``faults`` says what a configuration does when it is screened, ``race_faults`` what it does in a final; one of
    :data:`IMPOSSIBLE_TIMES` is the time that it claims to take. ``times`` are those of the configurations in it.
    """

    log: str
    faults: dict[Identity, str] = field(default_factory=dict)
    race_faults: dict[Identity, str] = field(default_factory=dict)
    seconds: float = 0.0
    times: dict[Identity, float] = field(default_factory=dict)

    def __call__(self, task: MeasureTask) -> list[Measurement]:
        kind = "race" if task.careful else "screen"
        with open(self.log, "a") as file:
            for key in task.configs:
                print(DEVICE, os.getpid(), task.cell.problem.sizes, kind, key, sep="\t", file=file)
        time.sleep(self.seconds)
        faults = self.race_faults if task.careful else self.faults
        return [self._measurement(key, faults.get(identity(key)), len(task.configs)) for key in task.configs]

    def _measurement(self, key: Key, fault: str | None, samples: int) -> Measurement:
        if fault == "hang":
            time.sleep(1000)
        if fault == "abort":
            os.abort()
        if fault == "exit":
            os._exit(9)
        if fault == "raise":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if fault in IMPOSSIBLE_TIMES:
            return Measurement("ok", float(fault), 0.01, samples, 1e-3)
        if fault is not None:
            return Measurement(fault, us=float("nan") if fault == "invalid_time" else None)
        # ``samples`` tells how many configurations were timed together.
        us = self.times.get(identity(key), 10.0 + sum(value for _, value in key[1]) % 17 / 10)
        return Measurement("ok", us, 0.01, samples, 1e-3)
