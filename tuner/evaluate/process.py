"""One worker process that answers tasks and can be killed with everything it started."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

START_LIMIT = 120.0
"""Seconds that a worker may take to start (imports and initializer) before the pool gives up."""

_MACHINE_ERRORS = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EMFILE", "ENFILE", "EAGAIN", "EIO", "ESTALE")
)
_MESSAGE_LIMIT = 500
_OUTPUT_LIMIT = 1 << 16
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """What became of a task.

    ``status`` is ``ok`` (``value`` holds the result), ``error`` (the function raised; ``message`` says what),
    ``timeout`` (killed at the limit) or ``crash`` (the process died; ``message`` names the signal or the exit code).
    """

    status: str
    value: R | None
    message: str
    seconds: float


class WorkerStartError(RuntimeError):
    """A worker could not start, so no task can run: the function's module or the initializer fails."""


class MachineError(OSError):
    """A worker's disk is full, or it may not write or open what it must: no task can run until that is mended."""


class Worker(Generic[T, R]):
    """The parent's side of one worker process."""

    def __init__(self, setup: bytes, memory_limit_bytes: int | None) -> None:
        context = multiprocessing.get_context("spawn")  # forkserver would hide the parent's death from the worker
        self.connection, child = context.Pipe()
        self.output, self.output_name = tempfile.mkstemp(prefix="attn-tune-worker-")
        arguments = (child, os.getpid(), self.output_name, setup, memory_limit_bytes)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        # A Ctrl-C while the worker starts must reach the parent only; the worker inherits this mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        child.close()
        self.task: tuple[T] | None = None
        self.ready = False
        self.alive = True
        self.time_limit = 0.0
        self.started = time.monotonic()
        self.deadline = self.started + START_LIMIT

    def assign(self, task: T, time_limit: float) -> None:
        self.task = (task,)
        self.time_limit = time_limit
        if self.ready:
            self._start_clock()
        with contextlib.suppress(BrokenPipeError):  # it died while idle; poll() reports it
            self.connection.send_bytes(pickle.dumps(task))

    def _start_clock(self) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + self.time_limit

    def poll(self) -> Outcome[R] | None:
        """The outcome of the task, or None while it runs; afterwards ``alive`` says whether the worker still is."""
        running = self.process.is_alive()  # before the pipe is read, so that the last answer of a dead worker counts
        try:
            if self.connection.poll():
                return self._receive(self.connection.recv())
        except (EOFError, ConnectionError):
            self.process.join(1)
            running = False
        seconds = time.monotonic() - self.started
        if running and time.monotonic() < self.deadline:
            return None
        self.alive = False
        if not self.ready:
            reason = (
                f"did not start within {START_LIMIT:g} s" if running else f"died at its start: {self._last_words()}"
            )
            raise WorkerStartError(f"a worker {reason}")
        if running:
            return Outcome("timeout", None, f"killed after {self.time_limit:g} s", seconds)
        return Outcome("crash", None, self._last_words(), seconds)

    def _receive(self, message: Outcome[R] | str | None) -> Outcome[R] | None:
        if isinstance(message, Outcome):
            if message.status == "machine":
                raise MachineError(f"a worker cannot go on: {message.message}")
            self.alive = message.status != "crash"
            report = next((line for line in self._output() if "error:" in line), None)
            if message.status == "error" and report is not None:  # compilers print the reason and raise something vague
                return replace(message, message=f"{message.message} ({report.strip()})"[:_MESSAGE_LIMIT])
            return message
        if message is not None:
            raise WorkerStartError(f"a worker could not start: {message}")
        self.ready = True
        self._start_clock()
        return None

    def _last_words(self) -> str:
        code = self.process.exitcode or 0
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = next((line.strip() for line in reversed(self._output()) if line.strip()), "")
        return f"{reason}: {last}"[:_MESSAGE_LIMIT] if last else reason

    def _output(self) -> list[str]:
        """The end of what the worker printed during its last task."""
        start = max(os.fstat(self.output).st_size - _OUTPUT_LIMIT, 0)
        return os.pread(self.output, _OUTPUT_LIMIT, start).decode(errors="replace").splitlines()

    def kill(self) -> None:
        """Kill the worker with its children and reap it."""
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # for a worker that has no group of its own yet
            self.process.join()
        self.connection.close()
        os.close(self.output)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.output_name)


def _serve(connection: Connection, parent: int, output: str, setup: bytes, memory_limit_bytes: int | None) -> None:
    """The worker: say that it is ready, then answer tasks until the pipe closes."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)
    log = os.open(output, os.O_RDWR | os.O_APPEND)
    os.unlink(output)  # the parent holds it open; nothing stays behind if both are killed
    os.dup2(log, 1)
    os.dup2(log, 2)
    if memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
    try:
        function, initializer = pickle.loads(setup)
        if initializer is not None:
            initializer()
    except Exception as error:
        connection.send(_describe(error))
        return
    connection.send(None)
    while True:
        try:
            task = connection.recv_bytes()
        except EOFError:
            return
        os.ftruncate(log, 0)
        connection.send_bytes(_answer(function, task))


def _answer(function: Callable[[Any], Any], task: bytes) -> bytes:
    start = time.monotonic()
    try:
        value = function(pickle.loads(task))
        return pickle.dumps(Outcome("ok", value, "", time.monotonic() - start))
    except OSError as error:
        # A full disk or a folder that cannot be written is nobody's fault but the machine's.
        status, message = "machine" if error.errno in _MACHINE_ERRORS else "error", _describe(error)
    except MemoryError:  # what else it broke is unknown: the parent replaces this process
        status, message = "crash", "out of memory"
    except Exception as error:
        status, message = "error", _describe(error)
    return pickle.dumps(Outcome(status, None, message, time.monotonic() - start))


def _describe(error: Exception) -> str:
    """The error's type and the last line of its text, which in a compiler's report is the reason."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"[:_MESSAGE_LIMIT]
