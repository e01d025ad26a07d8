"""NVIDIA GPUs, from the CUDA driver library.

Once a process has initialised the driver, the workers that it forks cannot use CUDA any more, and serving engines fork.
So unless the driver is in use already it is asked in a child process, which runs this file as a script.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

LIBRARY = "libcuda.so.1"
TIME_LIMIT = 30.0  # seconds, for the child: a driver with many GPUs takes over one second

# CUDA driver API, cuda.h
_NOT_INITIALIZED = 3
_MULTIPROCESSOR_COUNT = 16
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


def nvidia_device(index: int, library: str = LIBRARY) -> tuple[str, int, str] | None:
    """(arch, multiprocessors, name) of the device at a place among the visible ones, or None.

    The driver itself honours CUDA_VISIBLE_DEVICES. Without a driver, or a device, the answer is None.
    """
    driver = _load(library)
    if driver is None:
        return None
    if driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED:
        return _query(driver, index)
    command = [sys.executable, "-I", "-S", __file__, library, str(index)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=True).stdout
        arch, units, name = json.loads(answer)
    except (OSError, subprocess.SubprocessError, TypeError, ValueError):  # TypeError: the answer was null
        return None
    return arch, units, name


def _load(library: str) -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL(library)
        for name in ("cuInit", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDeviceGetName"):
            getattr(driver, name)
    except (OSError, AttributeError):
        return None
    return driver


def _query(driver: ctypes.CDLL, index: int) -> tuple[str, int, str] | None:
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    numbers = []
    for attribute in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR, _MULTIPROCESSOR_COUNT):
        number = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return None
        numbers.append(number.value)
    name = ctypes.create_string_buffer(256)
    if driver.cuDeviceGetName(name, len(name), device):
        return None
    major, minor, units = numbers
    return f"sm_{major}{minor}", units, name.value.decode(errors="replace")


if __name__ == "__main__":
    loaded = _load(sys.argv[1])
    print(json.dumps(_query(loaded, int(sys.argv[2])) if loaded else None))
