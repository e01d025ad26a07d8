from __future__ import annotations

import gzip
import lzma
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from attn_tune.store.journal import Journal, JournalError
from attn_tune.store.trial import Trial

MakeTrial = Callable[..., Trial]

# Appends copies of the trial on stdin that differ in max_seqlen_k, and prints each once it is safe.
WRITER = """
import sys
from dataclasses import replace
from attn_tune.store.journal import Journal
from attn_tune.store.trial import Trial
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
trial = Trial.from_json(sys.stdin.readline())
for k in range(first, first + count):
    Journal(path).append(replace(trial, sizes=(1, 1, k), message="m" * (k % 5000)))
    print(k, flush=True)
"""


def start_writer(path: Path, trial: Trial, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(trial.to_json() + "\n")
    process.stdin.close()
    return process


def lengths(journal: Journal) -> list[int]:
    return sorted(trial.sizes[2] for trial in journal.load().values() if trial.sizes)


def quietly_load(journal: Journal) -> dict[str, Trial]:
    """Load with every warning an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return journal.load()


def test_what_is_appended_is_loaded(tmp_path: Path, make_trial: MakeTrial) -> None:
    journal = Journal(tmp_path / "new" / "trials.jsonl", fsync=True)
    assert quietly_load(journal) == {}
    trials = [make_trial(sizes=(1, 1, k)) for k in (1, 2, 3)]
    for trial in trials:
        journal.append(trial)
    assert quietly_load(journal) == {trial.identity: trial for trial in trials}


def test_the_last_trial_of_an_identity_counts(tmp_path: Path, make_trial: MakeTrial) -> None:
    journal = Journal(tmp_path / "trials.jsonl")
    journal.append(make_trial(status="timeout", us=None))
    journal.append(make_trial(us=7.0))
    assert [trial.us for trial in quietly_load(journal).values()] == [7.0]


def test_a_killed_sweep_keeps_every_acknowledged_trial(tmp_path: Path, make_trial: MakeTrial) -> None:
    journal = Journal(tmp_path / "trials.jsonl")
    process = start_writer(journal.path, make_trial(), 1, 1_000_000)
    assert process.stdout is not None
    for _ in range(50):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    acknowledged = 50 + len(process.stdout.readlines())
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    found = lengths(journal)
    assert found == list(range(1, len(found) + 1))
    assert acknowledged <= len(found) <= acknowledged + 1
    journal.append(make_trial(sizes=(1, 1, 2_000_000)))
    assert len(lengths(journal)) == len(found) + 1


def test_a_line_torn_at_any_byte_costs_only_itself(tmp_path: Path, make_trial: MakeTrial) -> None:
    first, torn, after = (make_trial(sizes=(1, 1, k)) for k in (1, 2, 3))
    whole = torn.to_json().encode()
    for cut in range(len(whole)):
        journal = Journal(tmp_path / f"{cut}.jsonl")
        journal.append(first)
        with journal.path.open("ab") as file:
            file.write(whole[:cut])
        journal.append(after)
        if cut:
            with pytest.warns(UserWarning, match=rf"{cut}\.jsonl: skipped 1 invalid .* line 2") as caught:
                trials = journal.load()
            assert len(caught) == 1
        else:
            trials = quietly_load(journal)
        assert list(trials) == [first.identity, after.identity]


def test_a_line_that_lost_only_its_end_is_kept(tmp_path: Path, make_trial: MakeTrial) -> None:
    journal = Journal(tmp_path / "trials.jsonl")
    journal.path.write_text(make_trial(sizes=(1, 1, 1)).to_json())
    journal.append(make_trial(sizes=(1, 1, 2)))
    assert len(quietly_load(journal)) == 2


def test_processes_may_append_together(tmp_path: Path, make_trial: MakeTrial) -> None:
    journal = Journal(tmp_path / "trials.jsonl")
    processes = [start_writer(journal.path, make_trial(), first, 150) for first in (1, 1001, 2001)]
    for process in processes:
        assert process.stdout is not None
        with process.stdout:
            assert len(process.stdout.readlines()) == 150
        assert process.wait() == 0
    assert len(quietly_load(journal)) == 450
    assert len(journal.path.read_bytes().splitlines()) == 450


@pytest.mark.parametrize(
    "garbage", [b"\0" * 4096, b"\xff\xfe{}", b"{}", b"[" * 50_000, b'"text"', "{}".encode("utf-16")]
)
def test_invalid_lines_are_counted_in_one_warning(tmp_path: Path, make_trial: MakeTrial, garbage: bytes) -> None:
    journal = Journal(tmp_path / "trials.jsonl")
    journal.append(make_trial(sizes=(1, 1, 1)))
    with journal.path.open("ab") as file:
        file.write((garbage + b"\n") * 3)
    journal.append(make_trial(sizes=(1, 1, 2)))
    with pytest.warns(UserWarning, match=r"trials\.jsonl: skipped 3 invalid .* line 2:") as caught:
        assert len(journal.load()) == 2
    assert len(caught) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error(make_trial: MakeTrial) -> None:
    with pytest.raises(JournalError, match=r"^/dev/full: cannot append a trial: No space left on device$"):
        Journal(Path("/dev/full")).append(make_trial())


def test_a_disk_that_fills_within_a_line_is_a_clear_error(tmp_path: Path, make_trial: MakeTrial) -> None:
    code = """
import resource, sys
from attn_tune.store.journal import Journal, JournalError
from attn_tune.store.trial import Trial
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    Journal(sys.argv[1]).append(Trial.from_json(sys.argv[2]))
except JournalError as error:
    print(error)
"""
    journal = Journal(tmp_path / "trials.jsonl")
    command = [sys.executable, "-c", code, str(journal.path), make_trial(sizes=(1, 1, 1)).to_json()]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "only 100 of" in out
    journal.append(make_trial(sizes=(1, 1, 2)))
    with pytest.warns(UserWarning, match="skipped 1"):
        assert lengths(journal) == [2]


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, make_trial: MakeTrial) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "trials.jsonl", tmp_path):
        with pytest.raises(JournalError, match=rf"^{path}: cannot append"):
            Journal(path).append(make_trial())
    with pytest.raises(JournalError, match="cannot read the journal: Is a directory"):
        Journal(tmp_path).load()


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_journals_are_read(
    tmp_path: Path, make_trial: MakeTrial, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    journal = Journal(tmp_path / f"trials.jsonl{suffix}")
    trials = [make_trial(sizes=(1, 1, k), message=str(k) * 50) for k in range(1, 2000)]
    data = compress("".join(trial.to_json() + "\n" for trial in trials).encode())
    journal.path.write_bytes(data)
    assert list(quietly_load(journal).values()) == trials
    with pytest.raises(JournalError, match="read-only"):
        journal.append(trials[0])
    journal.path.write_bytes(data[: len(data) * 3 // 4])
    with pytest.warns(UserWarning, match="skipped 1 invalid"):
        kept = list(journal.load().values())
    assert kept == trials[: len(kept)]
    journal.path.write_bytes(b"not compressed\n")
    with pytest.warns(UserWarning, match="skipped 1 invalid"):
        assert journal.load() == {}
