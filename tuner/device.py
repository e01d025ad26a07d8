"""The GPU of this machine, found without loading torch or triton.

Drivers are asked for the facts: the KFD's sysfs files on ROCm, and libcuda on NVIDIA. A torch that is already in use
only says which of the visible devices is the current one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .device_amd import amd_device
from .device_nvidia import nvidia_device


@dataclass(frozen=True)
class LocalDevice:
    """A GPU as its driver describes it; ``arch`` is an arch name, ``partition`` AMD's compute partition ("SPX")."""

    arch: str
    compute_units: int
    name: str
    partition: str = ""


@cache
def local_device() -> LocalDevice | None:
    """The current device, or the first visible one, or None; found once, then remembered for this process."""
    index, backend = _current_index()
    if backend != "hip":
        fields = nvidia_device(index)
        if fields is not None:
            return LocalDevice(*fields)
    return None if backend == "cuda" else local_amd_device(index)


def local_amd_device(index: int = 0, sysfs: Path = Path("/sys")) -> LocalDevice | None:
    """The AMD GPU at a place among the visible ones; ``sysfs`` is the root of the sysfs tree."""
    fields = amd_device(index, sysfs, os.environ)
    return None if fields is None else LocalDevice(*fields)


def _current_index() -> tuple[int, str]:
    """The current device's place among the visible ones, and the backend of the torch that says so ("" if none)."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while another thread is still importing torch
    if torch is None or cuda is None or not cuda.is_initialized():
        return 0, ""
    return cuda.current_device(), "hip" if torch.version.hip else "cuda"
