"""The append-only log of trials: one JSON line each, safe to kill and to share between processes."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import lzma
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .trial import Trial

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


class JournalError(OSError):
    """A journal cannot be read or written. ``path`` and ``reason`` say which and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Journal:
    """A journal file. Several processes may append to one at the same time.

    ``fsync`` makes every appended trial survive a power cut as well as a kill.
    """

    path: Path
    fsync: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    def load(self) -> dict[str, Trial]:
        """The trials by identity, the last one of each; none when the file does not exist.

        ``.gz`` and ``.xz`` files are read as well. Lines that are torn or invalid are skipped with one warning that
        counts them.

        Raises:
            JournalError: the file exists but cannot be read.
        """
        trials: dict[str, Trial] = {}
        faults: list[str] = []
        try:
            for number, line in enumerate(self._lines(), start=1):
                if isinstance(line, Exception):
                    faults.append(f"line {number}: {line}")
                elif line.strip():
                    try:
                        trial = Trial.from_json(line.decode())
                    except ValueError as error:
                        faults.append(f"line {number}: {error}")
                    else:
                        trials[trial.identity] = trial
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise JournalError(self.path, f"cannot read the journal: {error.strerror or error}") from error
        if faults:
            warnings.warn(f"{self.path}: skipped {len(faults)} invalid line(s); the first, {faults[0]}", stacklevel=2)
        return trials

    def _lines(self) -> Iterator[bytes | Exception]:
        """The lines; a damaged compressed file ends with the exception that says so."""
        opener = _OPENERS.get(self.path.suffix, open)
        file: IO[bytes]
        with opener(self.path, "rb") as file:
            try:
                yield from file
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
                yield error

    def append(self, trial: Trial) -> None:
        """Write one trial; when this returns, a kill no longer loses it.

        A torn last line, left by a writer that was killed, is closed first so that it costs only itself.

        Raises:
            JournalError: the disk is full, the directory is read-only, or the journal is a compressed one.
        """
        if self.path.suffix in _OPENERS:
            raise JournalError(self.path, "a compressed journal is read-only; append to a .jsonl file")
        line = trial.to_json().encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                # The lock keeps another writer's death from tearing a line between the check and the write. Where a
                # file system has no locks, O_APPEND and the single write still keep whole lines apart.
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":
                    line = b"\n" + line
                written = os.write(file, line)
                if self.fsync:
                    os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise JournalError(self.path, f"cannot append a trial: {error.strerror}") from error
        if written != len(line):
            raise JournalError(self.path, f"only {written} of {len(line)} bytes of a trial written: is the disk full?")
