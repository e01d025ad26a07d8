"""`attn-tune sweep` as a process: what it writes, what it survives, and what it does not do twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tiny_sweeps import FAMILY, SHAPE, run_sweep, shapes_file, shared_caches, start_sweep

from attn_tune.problem import AttentionFamily
from attn_tune.search.modelled import environment as versions
from attn_tune.store.check import check_table
from attn_tune.store.journal import Journal
from attn_tune.store.load import load_table
from attn_tune.store.trial import Trial

UNSUPPORTED = "- {num_query_heads: 4, num_kv_heads: 1, head_size: 64, q_dtype: fp16, kv_dtype: bf16}\n"
TRAPS = ("crash", "compile_error")  # all that UNSUPPORTED has, where the route of traps is registered
FIRST_ROUND = 8  # trials of the tiny family: six that rules choose, and half of --configs 4

# Code after which permission bits bind root as well: Linux's capset, version 3, with nothing in its three sets.
WITHOUT_CAPABILITIES = (
    "import ctypes; ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())"
)


@dataclass(frozen=True)
class Sweep:
    """A directory with a sweep's shapes, table and journal."""

    directory: Path
    output: str = ""

    @property
    def table(self) -> Path:
        return self.directory / "table.yaml"

    @property
    def journal(self) -> Path:
        return self.directory / "table.trials.jsonl"

    @property
    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def copy(self, directory: Path) -> Sweep:
        """The same files elsewhere."""
        shutil.copytree(self.directory, directory, dirs_exist_ok=True)
        return Sweep(directory)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return shared_caches(tmp_path_factory)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, caches: dict[str, str]) -> Sweep:
    """A finished sweep that nothing disturbed; tests work on copies."""
    directory = tmp_path_factory.mktemp("undisturbed")
    shapes_file(directory)
    return Sweep(directory, run_sweep(directory, environment=caches).stdout)


def own_caches(directory: Path) -> dict[str, str]:
    """Compile caches that no other sweep has filled."""
    return {name: str(directory / name) for name in ("ATTN_TUNE_CACHE_DIR", "TRITON_CACHE_DIR")}


def test_a_disk_without_room_for_compiled_code_is_no_candidates_fault(undisturbed: Sweep, tmp_path: Path) -> None:
    shapes_file(tmp_path)
    caches = own_caches(tmp_path)
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    failed = run_sweep(tmp_path, environment=caches, code=2, before=small)
    assert failed.stderr.startswith("attn-tune: a worker cannot go on: OSError")
    assert Sweep(tmp_path).lines == []
    run_sweep(tmp_path, environment=caches)
    assert (tmp_path / "table.yaml").read_bytes() == undisturbed.table.read_bytes()


def test_a_longer_limit_compiles_again_what_took_too_long(undisturbed: Sweep, tmp_path: Path) -> None:
    shapes_file(tmp_path)
    caches = own_caches(tmp_path)
    run_sweep(tmp_path, "--time-limit", "0.01", environment=caches, code=1)
    assert {Trial.from_json(line).status for line in Sweep(tmp_path).lines} == {"timeout"}
    before = len(Sweep(tmp_path).lines)
    run_sweep(tmp_path, "--time-limit", "0.01", environment=caches, code=1)
    assert len(Sweep(tmp_path).lines) == before
    run_sweep(tmp_path, environment=caches)
    assert (tmp_path / "table.yaml").read_bytes() == undisturbed.table.read_bytes()


def test_a_ray_cluster_makes_the_same_table(undisturbed: Sweep, caches: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    shapes_file(tmp_path)
    fresh = caches | {"ATTN_TUNE_CACHE_DIR": str(tmp_path / "compiles")}  # so that there is work for the cluster
    output = run_sweep(tmp_path, "--ray", "local", environment=fresh)
    assert (tmp_path / "table.yaml").read_bytes() == undisturbed.table.read_bytes()
    assert sorted(Sweep(tmp_path).lines) == sorted(undisturbed.lines)
    assert output.stderr == ""


def identities(sweep: Sweep) -> list[str]:
    return [Trial.from_json(line).identity for line in sweep.lines if line]


def test_the_table_answers_every_size_and_says_what_it_is(undisturbed: Sweep) -> None:
    table = load_table(undisturbed.table)
    assert check_table(table) == []
    assert (table.arch, table.compute_units, dict(table.built_with)) == ("gfx950", 256, versions())
    assert [rows.family for rows in table.families] == [FAMILY]
    assert {row.evidence for rows in table.families[0].configs.values() for row in rows} == {"modelled"}
    assert f"table: {undisturbed.table}" in undisturbed.output
    assert "compiled for gfx950, not timed" in undisturbed.output


def test_no_trial_is_made_twice_and_each_has_its_resources(undisturbed: Sweep) -> None:
    assert len(undisturbed.lines) > FIRST_ROUND
    trials = Journal(undisturbed.journal).load()
    assert len(trials) == len(undisturbed.lines)
    assert {(trial.status, trial.evidence, trial.sizes) for trial in trials.values()} == {("ok", "modelled", None)}
    assert all(trial.resources and trial.resources["registers"] > 0 for trial in trials.values())


def test_progress_without_a_terminal_is_a_line_now_and_then(undisturbed: Sweep) -> None:
    lines = [line for line in undisturbed.output.splitlines() if " trials, " in line and " elapsed" in line]
    pattern = r"(round [123] of 3: (ranking 1/1|compiling)|building tables): \d+/\d+ trials, \d+:\d\d elapsed.*"
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert any(f"compiling: {FIRST_ROUND}/{FIRST_ROUND} trials" in line for line in lines)


def test_a_rerun_adds_no_trial_and_writes_the_same_bytes(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    again = undisturbed.copy(tmp_path)
    again.table.unlink()
    result = run_sweep(tmp_path, "--json", environment=caches)
    assert again.lines == undisturbed.lines
    assert again.table.read_bytes() == undisturbed.table.read_bytes()
    summary = json.loads(result.stdout)
    assert summary["trials"] == {"ok": len(undisturbed.lines)}
    assert (summary["complete"], summary["shapes"], summary["without_valid_row"]) == (True, 1, {})
    assert (summary["table"], summary["evidence"]) == (str(again.table), "modelled")
    assert "round 1 of 3" in result.stderr


def test_lines_of_progress_arrive_while_the_sweep_runs_and_say_how_long_is_left(
    tmp_path: Path, caches: dict[str, str]
) -> None:
    shapes_file(tmp_path)
    cold = caches | {"ATTN_TUNE_CACHE_DIR": str(tmp_path / "compiles")}
    before = "from attn_tune.cli import progress; progress.SECONDS_BETWEEN_LINES = 0.1"
    process = start_sweep(tmp_path, environment=cold, before=before)
    assert process.stdout is not None
    line = next(line for line in process.stdout if " left" in line)
    running = process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert running
    assert re.fullmatch(r"round 1 of 3: compiling: \d/8 trials, \d:\d\d elapsed, about \d:\d\d left\n", line)


@pytest.mark.parametrize(("end", "after"), [(signal.SIGKILL, 2), (signal.SIGINT, FIRST_ROUND + 1)])
def test_a_sweep_that_was_stopped_goes_on_where_it_was(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str], end: signal.Signals, after: int
) -> None:
    shapes_file(tmp_path)
    sweep = Sweep(tmp_path)
    cold = caches | {"ATTN_TUNE_CACHE_DIR": str(tmp_path / "compiles")}  # time between trials to be stopped in
    process = start_sweep(tmp_path, environment=cold)
    workers = wait_for_lines(process, sweep, after)
    os.killpg(process.pid, end)
    output = "".join(process.communicate(timeout=60))
    assert process.returncode == (130 if end == signal.SIGINT else -signal.SIGKILL), output
    assert ("the same command goes on from there" in output) == (end == signal.SIGINT)
    wait_until_gone(workers)
    kept = sweep.lines
    assert after <= len(kept) < len(undisturbed.lines)
    assert not sweep.table.exists()

    run_sweep(tmp_path, environment=caches)
    assert sweep.lines[: len(kept)] == kept
    assert len(set(identities(sweep))) == len(sweep.lines)
    assert set(identities(sweep)) == set(identities(undisturbed))
    assert sweep.table.read_bytes() == undisturbed.table.read_bytes()


def wait_for_lines(process: subprocess.Popen[str], sweep: Sweep, count: int) -> list[int]:
    """Wait until the journal has so many lines; the ids of the sweep's worker processes then."""
    while len(sweep.lines) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_budget_ends_with_the_best_of_all_runs_so_far(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    sweep.table.unlink()
    sweep.journal.write_text("".join(f"{line}\n" for line in undisturbed.lines[:FIRST_ROUND]))
    summary = json.loads(run_sweep(tmp_path, "--budget", "1e-9", "--json", environment=caches).stdout)
    assert summary["complete"] is False
    assert summary["trials"] == {"ok": FIRST_ROUND}
    assert len(sweep.lines) == FIRST_ROUND
    assert check_table(load_table(sweep.table)) == []


def test_a_budget_too_small_for_any_trial_fails_and_leaves_the_old_table(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    sweep.journal.unlink()
    output = run_sweep(tmp_path, "--budget", "1e-9", environment=caches, code=1).stdout
    assert "incomplete: the budget ran out" in output
    assert f"no valid row: {FAMILY}" in output
    assert "table: " not in output
    assert sweep.table.read_bytes() == undisturbed.table.read_bytes()


def test_a_second_family_joins_the_table_and_the_first_stays(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    shapes_file(tmp_path, SHAPE.replace("}", ", page_size: 32}"))
    run_sweep(tmp_path, "--configs", "1", environment=caches)
    table = load_table(sweep.table)
    assert [rows.family for rows in table.families] == [FAMILY, AttentionFamily(4, 1, 64, page_size=32)]
    assert table.families[0] == load_table(undisturbed.table).families[0]
    assert sweep.lines[: len(undisturbed.lines)] == undisturbed.lines
    assert len(sweep.lines) > len(undisturbed.lines)


def test_a_family_that_nothing_computes_is_named_and_the_others_get_their_rows(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    sweep.table.unlink()
    shapes_file(tmp_path, SHAPE + UNSUPPORTED)
    result = run_sweep(tmp_path, environment=caches, code=1)
    assert "no valid row: 4/1/64 page 16 q fp16 kv bf16" in result.stdout
    assert sweep.table.read_bytes() == undisturbed.table.read_bytes()


def test_a_family_whose_candidates_all_fail_gets_no_row_and_leaves_the_old_table(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    shapes_file(tmp_path, UNSUPPORTED)
    before = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
        f"import trap_kernels; from attn_tune.kernels import register; register(trap_kernels.TrapRoute({TRAPS}))"
    )
    summary = json.loads(run_sweep(tmp_path, "--json", environment=caches, code=1, before=before).stdout)
    assert summary["trials"] == dict.fromkeys(TRAPS, 1)
    assert (summary["complete"], summary["table"], summary["rows"]) == (True, None, 0)
    assert list(summary["without_valid_row"]) == ["4/1/64 page 16 q fp16 kv bf16"]
    assert len(sweep.lines) == len(undisturbed.lines) + len(TRAPS)
    assert sweep.table.read_bytes() == undisturbed.table.read_bytes()


def test_another_triton_trusts_no_trial_of_an_earlier_one(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    info = tmp_path / "site" / "triton-99.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 99.0\n")
    (info / "entry_points.txt").write_text(distribution("triton").read_text("entry_points.txt") or "")  # its backends
    run_sweep(tmp_path, environment=caches | {"PYTHONPATH": str(info.parent)})
    assert sweep.lines[: len(undisturbed.lines)] == undisturbed.lines
    versions = [Trial.from_json(line).environment["triton"] for line in sweep.lines]
    assert versions.count("99.0") == len(undisturbed.lines) == len(sweep.lines) / 2
    assert load_table(sweep.table).built_with["triton"] == "99.0"


def test_a_full_disk_costs_the_trial_in_flight_and_leaves_the_old_table(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str]
) -> None:
    sweep = undisturbed.copy(tmp_path)
    old = undisturbed.table.read_text() + "# a person's remark\n"
    sweep.table.write_text(old)
    error = run_on_small_disk(tmp_path, caches, 8192)
    assert re.fullmatch(rf"attn-tune: .*cannot write the table: File too large: '{sweep.table}'\n", error)
    assert sweep.table.read_text() == old

    sweep.journal.unlink()
    error = run_on_small_disk(tmp_path, caches, 2500)
    assert re.fullmatch(rf"attn-tune: {sweep.journal}: only \d+ of \d+ bytes of a trial written.*\n", error)
    assert sweep.table.read_text() == old
    result = run_sweep(tmp_path, environment=caches)
    assert result.stderr.count("skipped 1 invalid line(s)") == 1
    assert len(sweep.lines) == len(undisturbed.lines) + 1
    assert sweep.table.read_bytes() == undisturbed.table.read_bytes()


def run_on_small_disk(directory: Path, caches: dict[str, str], limit: int) -> str:
    """What a sweep that can write no file longer than ``limit`` bytes says on standard error; its status must be 2."""
    before = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    environment = caches | {"PYTHONDONTWRITEBYTECODE": "1"}
    return run_sweep(directory, environment=environment, code=2, before=before).stderr


@pytest.mark.parametrize(("has_trials", "reason"), [(True, "cannot write the table"), (False, "cannot append a trial")])
def test_a_read_only_directory_is_one_line_and_the_old_table_stays(
    undisturbed: Sweep, tmp_path: Path, caches: dict[str, str], has_trials: bool, reason: str
) -> None:
    sweep = undisturbed.copy(tmp_path)
    if not has_trials:
        sweep.journal.unlink()
    tmp_path.chmod(0o555)
    error = run_sweep(tmp_path, environment=caches, code=2, before=WITHOUT_CAPABILITIES).stderr
    tmp_path.chmod(0o755)
    assert re.fullmatch(rf"attn-tune: .*{reason}: Permission denied.*\n", error)
    assert str(tmp_path) in error
    assert sweep.table.read_bytes() == undisturbed.table.read_bytes()
    assert len(sweep.lines) == (len(undisturbed.lines) if has_trials else 0)
