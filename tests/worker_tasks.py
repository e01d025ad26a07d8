"""Functions that worker processes run in the tests: well-behaved ones and every way to misbehave."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time


def square(value: int) -> int:
    return value * value


def process_id(_: int) -> int:
    return os.getpid()


def misbehave(how: str) -> str:
    """Fail in the way that the task names; any other task comes back as it is."""
    if how == "raise":
        raise ValueError("first line\nthe reason")
    if how == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if how == "report":
        os.write(2, b"part.mlir:3: error: no such layout\nmany more lines\n")
        raise RuntimeError("PassManager::run failed")
    if how == "SystemError":
        ctypes.pythonapi.PyErr_BadInternalCall()
    if how == "abort":
        print("LLVM ERROR: out of registers", file=sys.stderr, flush=True)
        os.abort()
    if how == "SystemExit":
        sys.exit(7)
    if how == "_exit":
        os._exit(9)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "memory":
        return str(len(bytearray(8 << 30)))
    if how == "hang":
        time.sleep(1000)
    if how == "unpicklable":
        return lambda: how  # type: ignore[return-value]
    if how == "fork":  # the child keeps the pipe open after its parent is gone
        if os.fork() == 0:
            time.sleep(1000)
        os.abort()
    return how


def hang_with_child(path: str) -> None:
    """Start a child, write both process ids to the file, and never return."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(1000)


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def refuse() -> None:
    """An initializer that fails."""
    raise RuntimeError("no such device")


_seen: list[str] = []


def remember(task: str) -> list[str]:
    """All tasks that this process has had, once it has misbehaved in the way that the task names, if it is one."""
    _seen.append(misbehave(task))
    return list(_seen)
