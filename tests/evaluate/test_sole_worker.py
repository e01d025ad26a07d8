"""One worker that is asked one task after the other."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest
import worker_tasks
from test_workers import children, wait_until_gone

from attn_tune.evaluate.workers import SoleWorker, StoppedError, WorkerStartError


def test_state_is_kept_from_task_to_task() -> None:
    with SoleWorker(worker_tasks.remember) as worker:
        assert worker.ask("a", 60).value == ["a"]
        assert worker.ask("b", 60).value == ["a", "b"]


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("hang", "timeout", "killed after 1 s"),
        ("abort", "crash", "SIGABRT: LLVM ERROR: out of registers"),
        ("_exit", "crash", "exit code 9"),
        ("segfault", "crash", "SIGSEGV"),
    ],
)
def test_a_worker_that_is_lost_is_replaced_for_the_next_task(how: str, status: str, words: str) -> None:
    before = children()
    with SoleWorker(worker_tasks.remember) as worker:
        assert worker.ask("a", 60).value == ["a"]
        bad = worker.ask(how, 1)
        assert (bad.status, bad.value) == (status, None)
        assert words in bad.message
        assert children() <= before  # no zombie
        assert worker.ask("b", 60).value == ["b"]
    assert children() <= before


def test_an_error_keeps_the_worker() -> None:
    with SoleWorker(worker_tasks.remember) as worker:
        worker.ask("a", 60)
        bad = worker.ask("raise", 60)
        assert (bad.status, bad.message) == ("error", "ValueError: the reason")
        assert worker.ask("b", 60).value == ["a", "b"]


def test_closing_starts_anew() -> None:
    with SoleWorker(worker_tasks.remember) as worker:
        worker.ask("a", 60)
        worker.close()
        assert worker.ask("b", 60).value == ["b"]


def test_the_limit_counts_from_the_task_not_from_the_start() -> None:
    with SoleWorker(worker_tasks.nap, partial(worker_tasks.nap, 1.0)) as worker:
        outcome = worker.ask(0.1, 0.5)
        assert (outcome.status, outcome.value) == ("ok", 0.1)


def test_another_thread_can_stop_a_task() -> None:
    before = children()
    stop = threading.Event()
    with SoleWorker(worker_tasks.misbehave, stop=stop) as worker:
        assert worker.ask("fine", 60).value == "fine"
        threading.Timer(0.5, stop.set).start()
        start = time.monotonic()
        with pytest.raises(StoppedError):
            worker.ask("hang", 600)
        assert time.monotonic() - start < 5
        assert children() <= before
        with pytest.raises(StoppedError):  # for good
            worker.ask("fine", 60)


def test_a_worker_that_died_while_idle_is_replaced() -> None:
    with SoleWorker(worker_tasks.process_id) as worker:
        first = worker.ask(0, 60).value
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert wait_until_gone(first)
        second = worker.ask(0, 60)
        assert second.status == "ok"
        assert second.value != first


def test_an_initializer_that_fails_is_an_error_of_its_own() -> None:
    with (
        SoleWorker(worker_tasks.square, worker_tasks.refuse) as worker,
        pytest.raises(WorkerStartError, match="device"),
    ):
        worker.ask(1, 60)
