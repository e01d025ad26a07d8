from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import worker_tasks

from attn_tune.evaluate.workers import MachineError, WorkerStartError, run_tasks


def is_running(process: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(*processes: int) -> bool:
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        if not any(is_running(process) for process in processes):
            return True
        time.sleep(0.05)
    return False


def children() -> set[int]:
    """Children of this process, zombies included, without multiprocessing's own resource tracker."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    lines = [line.split(None, 1) for line in found.stdout.splitlines()]
    return {int(pid) for pid, args in lines if "resource_tracker" not in args and not args.startswith("ps ")}


def written_ids(path: Path, limit: float = 30) -> list[int]:
    """The process ids that a task wrote, once they are there."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if path.exists() and len(ids := path.read_text().split()) == 2:
            return [int(text) for text in ids]
        time.sleep(0.05)
    raise AssertionError(f"nothing in {path}")


def test_every_task_comes_back_with_its_result() -> None:
    results = dict(run_tasks(worker_tasks.square, range(20), workers=2, time_limit=60))
    assert {task: outcome.value for task, outcome in results.items()} == {task: task * task for task in range(20)}
    assert {outcome.status for outcome in results.values()} == {"ok"}


def test_workers_stay_alive_across_tasks() -> None:
    ids = [outcome.value for _, outcome in run_tasks(worker_tasks.process_id, range(8), workers=2, time_limit=60)]
    assert 1 <= len(set(ids)) <= 2
    assert os.getpid() not in ids


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("raise", "error", "ValueError: the reason"),
        ("report", "error", "RuntimeError: PassManager::run failed (part.mlir:3: error: no such layout)"),
        ("SystemError", "error", "SystemError: "),
        ("unpicklable", "error", "lambda"),
        ("abort", "crash", "SIGABRT: LLVM ERROR: out of registers"),
        ("segfault", "crash", "SIGSEGV"),
        ("SystemExit", "crash", "exit code 7"),
        ("_exit", "crash", "exit code 9"),
        ("memory", "crash", "out of memory"),
        ("fork", "crash", "SIGABRT"),
        ("hang", "timeout", "killed after 1.5 s"),
    ],
)
def test_a_misbehaving_task_is_an_outcome_and_the_next_one_runs(how: str, status: str, words: str) -> None:
    before = children()
    outcomes = list(
        run_tasks(worker_tasks.misbehave, [how, "fine"], workers=1, time_limit=1.5, memory_limit_bytes=2 << 30)
    )
    (task, bad), (_, good) = outcomes
    assert (task, bad.status) == (how, status)
    assert words in bad.message
    assert "\n" not in bad.message
    assert (good.status, good.value) == ("ok", "fine")
    assert children() <= before  # nothing runs on, and nothing is a zombie


def test_a_timeout_kills_the_children_of_the_task_too(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    ((_, outcome),) = run_tasks(worker_tasks.hang_with_child, [str(file)], workers=1, time_limit=2)
    assert outcome.status == "timeout"
    assert 2 <= outcome.seconds < 4
    assert wait_until_gone(*written_ids(file))


def test_tasks_are_taken_only_when_a_worker_is_free() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for task in range(100):
            taken.append(task)
            yield task

    results = run_tasks(worker_tasks.square, tasks(), workers=2, time_limit=60)
    next(results)
    results.close()
    assert len(taken) <= 4


def test_results_come_in_the_order_of_completion() -> None:
    order = [task for task, _ in run_tasks(worker_tasks.nap, [3.0, 0.1], workers=2, time_limit=60)]
    assert order == [0.1, 3.0]


def test_closing_the_generator_kills_the_workers() -> None:
    before = children()
    results = run_tasks(worker_tasks.misbehave, ["fine", "hang", "hang"], workers=2, time_limit=600)
    next(results)
    assert children() > before
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 2
    assert children() <= before


def test_a_worker_that_dies_while_idle_is_replaced() -> None:
    def tasks() -> Iterator[int]:
        yield 0
        yield 1
        for process in seen:
            os.kill(process, signal.SIGKILL)
            assert wait_until_gone(process)
        yield 2

    seen: list[int] = []
    for _, outcome in run_tasks(worker_tasks.process_id, tasks(), workers=1, time_limit=60):
        assert outcome.status == "ok"
        assert outcome.value is not None
        seen.append(outcome.value)
    assert len(set(seen)) == 2


SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
import worker_tasks
from attn_tune.evaluate.workers import run_tasks
if __name__ == "__main__":
    list(run_tasks(worker_tasks.hang_with_child, [{file!r}], workers=1, time_limit=600))
"""


def test_a_full_disk_ends_the_run_and_is_no_tasks_failure() -> None:
    tasks = run_tasks(worker_tasks.misbehave, ["fine", "full", "fine"], workers=1, time_limit=60)
    assert next(tasks)[1].status == "ok"
    with pytest.raises(MachineError, match="No space left"):
        list(tasks)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_die_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    file, script = tmp_path / "ids", tmp_path / "sweep.py"
    script.write_text(SCRIPT.format(folder=str(Path(worker_tasks.__file__).parent), file=str(file)))
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    worker, child = written_ids(file)
    parent.send_signal(how)
    _, errors = parent.communicate(timeout=10)
    try:
        assert parent.returncode in (-how, 1, 130)
        assert wait_until_gone(worker)
        assert errors.count("Traceback") == (1 if how is signal.SIGINT else 0)
    finally:
        if is_running(child):  # an orphan of SIGKILL, which nobody can pass on to grandchildren
            os.kill(child, signal.SIGKILL)


def test_an_initializer_that_fails_stops_the_pool() -> None:
    with pytest.raises(WorkerStartError, match="RuntimeError: no such device"):
        list(run_tasks(worker_tasks.square, [1], workers=1, time_limit=60, initializer=worker_tasks.refuse))


@pytest.mark.parametrize(("workers", "limit", "name"), [(0, 1.0, "workers"), (1, 0.0, "time_limit")])
def test_bad_arguments_are_named(workers: int, limit: float, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        run_tasks(worker_tasks.square, [], workers=workers, time_limit=limit)
