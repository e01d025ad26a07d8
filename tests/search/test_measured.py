"""Measuring families in worker processes, without a GPU: the workers run stubs, everything else is real."""

from __future__ import annotations

import lzma
import re
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measure_tasks import IMPOSSIBLE_TIMES, Stub, refuse_device, use_device
from measured_runs import ARCH, FAMILY, PROBLEMS, key_of, log_lines, measured, run, stub_machines
from measured_runs import journal as journal
from measured_runs import log as log

from attn_tune.arch import ArchSpec
from attn_tune.evaluate.timing import POLICY
from attn_tune.evaluate.workers import SoleWorker, WorkerStartError
from attn_tune.problem import AttentionProblem
from attn_tune.search.machines import WorkerGoneError
from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY
from attn_tune.search.measured import measured_table
from attn_tune.search.predictions import rule_configs
from attn_tune.search.staged import Key, full_key, identity
from attn_tune.store.journal import Journal, JournalError


def a_rule(problem: AttentionProblem) -> Key:
    """What the first of the rules runs at a problem."""
    return full_key(*next(iter(rule_configs(problem, ARCH).values())))


def test_every_cell_gets_a_final_and_a_table_follows(journal: Journal, log: str) -> None:
    seen: list[tuple[int, int]] = []
    result = run(journal, Stub(log), progress=lambda done, total, text: seen.append((done, total)))
    assert result.complete
    assert {trial.sizes for trial in measured(journal, RACE_POLICY)} == {problem.sizes for problem in PROBLEMS}
    assert seen[-1] == (2, 2)
    table = measured_table(FAMILY, result.trials, ARCH)
    assert {row.evidence for rows in table.configs.values() for row in rows} == {"measured"}


def test_the_same_run_again_measures_nothing(journal: Journal, log: str) -> None:
    first = run(journal, Stub(log))
    before = Path(log).read_text(), journal.path.read_text()
    second = run(journal, Stub(log))
    assert first.new_trials == len(log_lines(log)) > 0
    assert (second.new_trials, second.complete) == (0, True)
    assert (Path(log).read_text(), journal.path.read_text()) == before


def test_times_of_another_policy_are_not_compared_with(journal: Journal, log: str) -> None:
    first = run(journal, Stub(log))
    text = journal.path.read_text()
    assert text.count(POLICY) == first.new_trials
    journal.path.write_text(re.sub(r'"us":[\d.]+', '"us":0.1', text).replace(POLICY, "events-warm-1"))
    again = run(journal, Stub(log))
    assert again.new_trials == first.new_trials
    assert measured_table(FAMILY, again.trials, ARCH) == measured_table(FAMILY, first.trials, ARCH)


def test_nothing_is_measured_twice_in_one_run(journal: Journal, log: str) -> None:
    run(journal, Stub(log))
    assert set(Counter(tuple(line[2:]) for line in log_lines(log)).values()) == {1}


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("hang", "timeout", "killed after"),
        ("abort", "crash", "SIGABRT"),
        ("exit", "crash", "exit code 9"),
        ("raise", "crash", "illegal memory access"),
        ("wrong_result", "wrong_result", ""),
        ("invalid_time", "invalid_time", ""),
        *((time, "invalid_time", f"us was {float(time)}") for time in IMPOSSIBLE_TIMES),
    ],
)
def test_a_bad_candidate_loses_only_itself(journal: Journal, log: str, fault: str, status: str, words: str) -> None:
    bad = a_rule(PROBLEMS[0])
    result = run(journal, Stub(log, {identity(bad): fault}))
    screened = measured(journal, SCREEN_POLICY)
    lost = [trial for trial in screened if identity(key_of(trial)) == identity(bad)]
    assert result.complete
    assert {trial.status for trial in lost} == {status}
    assert all(words in trial.message and trial.us is None for trial in lost)
    assert {trial.status for trial in screened if trial not in lost} == {"ok"}
    finals = measured(journal, RACE_POLICY)
    assert {trial.sizes for trial in finals} == {problem.sizes for problem in PROBLEMS}
    assert identity(bad) not in {identity(key_of(trial)) for trial in finals}
    assert run(journal, Stub(log)).new_trials == 0  # failures are results too


@pytest.mark.parametrize(("fault", "words"), [("raise", "illegal memory access"), ("abort", "SIGABRT")])
def test_a_lost_process_is_replaced(journal: Journal, log: str, fault: str, words: str) -> None:
    """Also after an exception, which may have cost the process its device."""
    bad = a_rule(PROBLEMS[0])
    run(journal, Stub(log, {identity(bad): fault}))
    lines = log_lines(log)
    index = next(index for index, line in enumerate(lines) if line[4] == str(bad))
    assert lines[index][1] != lines[index + 1][1]


@pytest.mark.parametrize(("fault", "status"), [("hang", "timeout"), ("raise", "crash")])
def test_a_finalist_that_is_lost_in_the_final_leaves_the_others_one(
    journal: Journal, log: str, fault: str, status: str
) -> None:
    run(journal, Stub(log))
    finalists = [trial for trial in measured(journal, RACE_POLICY) if trial.sizes == PROBLEMS[0].sizes]
    assert len(finalists) >= 3
    bad = identity(key_of(finalists[0]))

    kept = [line for line in journal.path.read_text().splitlines() if "/race" not in line]
    journal.path.write_text("\n".join(kept) + "\n")
    run(journal, Stub(log, race_faults={bad: fault}))
    again = [trial for trial in measured(journal, RACE_POLICY) if trial.sizes == PROBLEMS[0].sizes]
    assert {trial.status for trial in again if identity(key_of(trial)) == bad} == {status}
    others = [trial for trial in again if identity(key_of(trial)) != bad]
    assert len(others) == len(finalists) - 1
    # Timed against each other, not one by one.
    assert {(trial.status, trial.samples) for trial in others} == {("ok", len(others))}


def test_each_device_has_a_worker_and_no_cell_is_shared(journal: Journal, log: str) -> None:
    result = run(journal, Stub(log), machines=stub_machines(Stub(log, seconds=0.2), 2))
    lines = log_lines(log)
    assert result.complete
    assert {line[0] for line in lines} == {"0", "1"}
    assert len({(line[0], line[1]) for line in lines}) == 2
    assert len({(line[0], line[2]) for line in lines}) == len(PROBLEMS)


def test_two_devices_find_what_one_finds(journal: Journal, log: str, tmp_path: Path) -> None:
    other = Journal(tmp_path / "other.jsonl")
    other.path.write_bytes(journal.path.read_bytes())
    one, two = run(journal, Stub(log)), run(other, Stub(log), machines=stub_machines(Stub(log), 2))
    assert one.trials == two.trials
    assert measured_table(FAMILY, one.trials, ARCH) == measured_table(FAMILY, two.trials, ARCH)


class Gone(SoleWorker[Any, Any]):
    """A worker whose GPU goes away with its first task."""

    def ask(self, task: Any, time_limit: float) -> Any:
        raise WorkerGoneError("no GPU became free")


def gone(arch: ArchSpec, stop: threading.Event) -> Gone:
    return Gone(use_device)


def test_the_others_take_over_from_a_gpu_that_goes_away(journal: Journal, log: str, tmp_path: Path) -> None:
    here = stub_machines(Stub(log, seconds=0.1))
    other = Journal(tmp_path / "other.jsonl")
    other.path.write_bytes(journal.path.read_bytes())
    result = run(journal, Stub(log), machines=replace(here, gpus=[gone, *here.gpus]))
    assert result.complete
    assert {trial.sizes for trial in measured(journal, RACE_POLICY)} == {problem.sizes for problem in PROBLEMS}
    with pytest.raises(WorkerGoneError):
        run(other, Stub(log), machines=replace(here, gpus=[gone, gone]))


def test_a_device_that_is_not_there_ends_the_run_with_its_reason(journal: Journal, log: str) -> None:
    before = set(threading.enumerate())  # pytest's own workers may have threads
    with pytest.raises(WorkerStartError, match="no device 1"):
        run(journal, Stub(log), machines=stub_machines(Stub(log, seconds=0.5), 2, refuse_device))
    assert set(threading.enumerate()) <= before


def test_a_journal_that_cannot_be_written_ends_the_run(journal: Journal, log: str, tmp_path: Path) -> None:
    packed = Journal(tmp_path / "packed.jsonl.xz")
    packed.path.write_bytes(lzma.compress(journal.path.read_bytes()))
    with pytest.raises(JournalError, match="read-only"):
        run(packed, Stub(log))
