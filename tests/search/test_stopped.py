"""Measuring that ends early: by its deadline, by Ctrl-C, by a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from measure_tasks import Stub
from measured_runs import ARCH, EFFORT, FAMILY, PROBLEMS, log_lines, measured, run
from measured_runs import journal as journal
from measured_runs import log as log

from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY, TimeLimits
from attn_tune.search.measured import measured_table
from attn_tune.store.journal import Journal


def test_the_deadline_stops_a_run_that_the_next_one_completes(journal: Journal, log: str) -> None:
    start = time.monotonic()
    first = run(journal, Stub(log, seconds=0.5), deadline=start + 6.0)
    assert time.monotonic() - start < 14
    assert not first.complete
    asked = len(log_lines(log))
    assert first.new_trials <= asked <= first.new_trials + EFFORT.finalists + 1  # the task in flight is lost
    second = run(journal, Stub(log))
    assert second.complete
    total = len(measured(journal, SCREEN_POLICY)) + len(measured(journal, RACE_POLICY))
    assert first.new_trials + second.new_trials == total


def test_a_task_that_takes_long_is_given_up_at_the_deadline_and_progress_is_told_meanwhile(
    journal: Journal, log: str
) -> None:
    first = run(journal, Stub(log), grid=lambda family: PROBLEMS[:1])
    told = [time.monotonic()]
    late = told[0] + 3.0
    second = run(
        journal, Stub(log, seconds=1000), deadline=late, limits=TimeLimits(600, 600),
        progress=lambda *report: told.append(time.monotonic()),
    )  # fmt: skip
    assert time.monotonic() - late < 5
    assert (second.complete, second.new_trials) == (False, 0)
    assert told[-1] > late - 1
    assert max(after - before for before, after in pairwise(told)) < 2
    assert measured_table(FAMILY, second.trials, ARCH) == measured_table(FAMILY, first.trials, ARCH)


def test_a_deadline_in_the_past_measures_nothing(journal: Journal, log: str) -> None:
    result = run(journal, Stub(log), deadline=time.monotonic() - 1)
    assert (result.complete, result.new_trials) == (False, 0)


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from measure_tasks import Stub
from measured_runs import run
from attn_tune.store.journal import Journal
if __name__ == "__main__":
    try:
        run(Journal(Path({journal!r})), Stub({log!r}, seconds=0.4))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def wait_for_lines(path: str, count: int) -> list[list[str]]:
    """The log once it has so many lines."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if len(lines := log_lines(path)) >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError(f"{path} has no {count} lines")


def is_gone(process: int) -> bool:
    """Whether the process ends within ten seconds; a zombie has ended."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_ends_at_once_and_goes_on_where_it_was(
    journal: Journal, log: str, tmp_path: Path, how: signal.Signals
) -> None:
    script = tmp_path / "sweep.py"
    folders = [str(Path(__file__).parent)]
    script.write_text(SCRIPT.format(path=folders, journal=str(journal.path), log=log))
    sweep = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    worker = int(wait_for_lines(log, 4)[0][1])
    start = time.monotonic()
    os.kill(sweep.pid, how)
    _, errors = sweep.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert sweep.returncode == (130 if how is signal.SIGINT else -how)
    assert "Traceback" not in errors
    assert is_gone(worker)

    done = len(measured(journal, SCREEN_POLICY))
    assert done >= 3
    asked = len(log_lines(log))
    assert asked - done <= 1  # only the task in flight is lost
    again = run(journal, Stub(log))
    assert again.complete
    repeated = Counter(tuple(line[2:]) for line in log_lines(log))
    assert sum(count - 1 for count in repeated.values()) == asked - done
    assert len(measured(journal, SCREEN_POLICY)) + len(measured(journal, RACE_POLICY)) == done + again.new_trials


def test_ctrl_c_does_not_wait_for_the_compiler(log: str, tmp_path: Path) -> None:
    """Nothing is in this journal, so that the run is still busy with compiling."""
    journal, script = tmp_path / "empty.jsonl", tmp_path / "sweep.py"
    script.write_text(SCRIPT.format(path=[str(Path(__file__).parent)], journal=str(journal), log=log))
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    sweep = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    start = time.monotonic()
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert sweep.returncode == 130, errors
    assert Journal(journal).load()
    assert not Path(log).exists()
