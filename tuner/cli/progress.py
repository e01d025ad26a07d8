"""Progress of a long run: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..search.modelled import Progress as ProgressCallback

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_LOOKS = 1.0  # at whether it is time for a line although nothing was reported


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
    phase = (start, 0)  # when the current count began, and from where: what is known from earlier runs took no time
    last_done = 0

    latest: tuple[int, int, str] | None = None
    lock = threading.Lock()

    def line(done: int, total: int, what: str) -> None:
        nonlocal latest
        with lock:
            latest = (done, total, what)
            show_line(done, total, what)

    def show_line(done: int, total: int, what: str) -> None:
        nonlocal last_line, phase, last_done
        now = time.monotonic()
        if done < last_done:
            phase = (now, done)
        last_done = done
        if now - last_line < SECONDS_BETWEEN_LINES and done < total:
            return
        last_line = now
        begin, base = phase
        left = ""
        if base < done < total:
            left = f", about {duration((now - begin) / (done - base) * (total - done))} left"
        console.print(f"{what}: {done}/{total} trials, {duration(now - start)} elapsed{left}", highlight=False)

    def repeat() -> None:
        """A line for a step that takes long, too."""
        while not over.wait(SECONDS_BETWEEN_LOOKS):
            with lock:
                if latest is not None and latest[0] < latest[1]:
                    show_line(*latest)

    over = threading.Event()
    repeater = threading.Thread(target=repeat, daemon=True)
    repeater.start()
    try:
        yield line
    finally:
        over.set()
        repeater.join()


def duration(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
