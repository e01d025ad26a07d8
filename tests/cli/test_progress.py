from __future__ import annotations

import re
import time
from io import StringIO

import pytest
from rich.console import Console

from attn_tune.cli import progress
from attn_tune.cli.progress import duration, progress_reporter


def test_off_a_terminal_lines_are_seconds_apart_and_the_end_is_always_shown() -> None:
    console = Console(file=StringIO(), width=200)
    with progress_reporter(console) as report:
        for done in range(101):
            report(done, 100, "compiling")
    assert written(console) == ["compiling: 0/100 trials, 0:00 elapsed", "compiling: 100/100 trials, 0:00 elapsed"]


def test_off_a_terminal_a_line_says_how_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    console = Console(file=StringIO(), width=200)
    with progress_reporter(console) as report:
        report(1, 2, "compiling")
    assert re.fullmatch(r"compiling: 1/2 trials, 0:0\d elapsed, about 0:0\d left", *written(console))


def test_a_step_that_takes_long_has_its_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.3)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LOOKS", 0.05)
    console = Console(file=StringIO(), width=200)
    with progress_reporter(console) as report:
        report(1, 3, "compiling")
        time.sleep(1.3)
    lines = written(console)
    assert 3 <= len(lines) <= 6
    assert lines[-1].startswith("compiling: 1/3 trials, 0:01 elapsed")
    time.sleep(0.5)
    assert written(console) == lines  # and none once it is over


def test_a_count_that_starts_again_is_timed_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    console = Console(file=StringIO(), width=200)
    with progress_reporter(console) as report:
        report(50, 50, "compiling")
        time.sleep(1.2)
        report(1, 3, "building tables")
        report(2, 3, "building tables")
    assert re.fullmatch(r"building tables: 2/3 trials, 0:01 elapsed, about 0:00 left", written(console)[-1])


def test_on_a_terminal_a_bar_counts_and_goes_away() -> None:
    file = StringIO()
    console = Console(file=file, width=120, force_terminal=True)
    with progress_reporter(console) as report:
        report(3, 7, "round 1 of 3: compiling")
    assert "round 1 of 3: compiling" in file.getvalue()
    assert "3/7" in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3599.4, "59:59"), (3600, "1:00:00")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def written(console: Console) -> list[str]:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()
