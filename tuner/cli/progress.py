"""Progress of a long run: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..search.modelled import Progress as ProgressCallback

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress_reporter(console: Console) -> Iterator[ProgressCallback]:
    """A callback (done, total, what) that shows progress on ``console`` with the time left."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None)

            def show(done: int, total: int, what: str) -> None:
                bar.update(task, completed=done, total=total or None, description=what)

            yield show
        return

    start = time.monotonic()
    last_line = start - SECONDS_BETWEEN_LINES

    def line(done: int, total: int, what: str) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line < SECONDS_BETWEEN_LINES and done < total:
            return
        last_line = now
        elapsed = now - start
        left = f", about {duration(elapsed / done * (total - done))} left" if 0 < done < total else ""
        console.print(f"{what}: {done}/{total} trials, {duration(elapsed)} elapsed{left}", highlight=False)

    yield line


def duration(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
