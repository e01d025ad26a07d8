"""What the GPU was like while it was timed: clock, temperature, and whether another process was using it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch


def gpu_conditions() -> dict[str, int]:
    """``clock_mhz``, ``temperature_c`` and ``other_processes`` of the current device, as far as the driver tells.

    torch asks NVML or AMD SMI, whose Python bindings may be missing: then there is less to say.
    """
    readings: dict[str, Callable[[], Any]] = {
        "clock_mhz": lambda: torch.cuda.clock_rate(),
        "temperature_c": lambda: torch.cuda.temperature(),
        "other_processes": _other_processes,
    }
    found = {}
    for name, read in readings.items():
        try:
            found[name] = int(read())
        except (ImportError, RuntimeError, AttributeError, AssertionError, OSError):
            continue
    return found


def _other_processes() -> int:
    """Compute processes on the device besides this one. The listing has a line for each, with its process id."""
    lines = torch.cuda.list_gpu_processes().splitlines()
    if not lines or not lines[0].startswith("GPU"):  # instead it says which Python bindings are missing
        raise RuntimeError("torch cannot list the processes")
    users = [line.split()[1] for line in lines if line.split()[:1] == ["process"]]
    return sum(user != str(os.getpid()) for user in users)


def describe(before: dict[str, int], after: dict[str, int]) -> dict[str, str]:
    """Two readings as text: ``clock_mhz: 1980-1965``, and ``shared: yes`` if another process was there."""
    text: dict[str, str] = {
        name: f"{before[name]}-{after[name]}"
        for name in ("clock_mhz", "temperature_c")
        if name in before and name in after
    }
    if max(before.get("other_processes", 0), after.get("other_processes", 0)) > 0:
        text["shared"] = "yes"
    return text
