"""Tuning without a GPU, with real compilations of a small family."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trap_kernels
from tiny_sweeps import FAMILY, shared_caches

from attn_tune.arch import ArchSpec, get_arch
from attn_tune.kernels import register, registry
from attn_tune.problem import AttentionFamily
from attn_tune.search.grid import size_grid
from attn_tune.search.modelled import TOLERANCE, Compiled, compile_families, environment, modelled_table
from attn_tune.search.predictions import predicted_candidates
from attn_tune.search.propose import rule_compilations
from attn_tune.search.tables import table_config
from attn_tune.store.check import check_family
from attn_tune.store.journal import Journal

ARCH = get_arch("gfx950")


@dataclass
class Run:
    """What a run returned, its journal, and the progress that it reported."""

    journal: Journal
    compiled: Compiled
    complete: bool
    reports: list[tuple[int, int, str]] = field(default_factory=list)


def compile_family(path: Path, arch: ArchSpec = ARCH, family: AttentionFamily = FAMILY, **changes: Any) -> Run:
    run = Run(Journal(path), Compiled(), False)
    limits: dict[str, Any] = {"configs_per_family": 4, "time_limit": 60, "jobs": 2}
    states, run.complete = compile_families(
        [family],
        arch,
        run.journal,
        progress=lambda *report: run.reports.append(report),
        **limits | changes,
    )
    run.compiled = states[family]
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shared_caches(tmp_path_factory).items():
            patch.setenv(name, value)
        yield compile_family(tmp_path_factory.mktemp("modelled") / "trials.jsonl")


def test_the_rules_and_as_many_configurations_as_asked_for_are_compiled(run: Run) -> None:
    assert run.complete
    rules = rule_compilations(FAMILY, ARCH)
    assert set(rules) <= run.compiled.status.keys()
    assert len(run.compiled.status) == len(rules) + 4
    assert run.compiled.resources.keys() == {key for key, status in run.compiled.status.items() if status == "ok"}


def test_every_compilation_is_a_trial_of_this_arch_and_these_versions(run: Run) -> None:
    trials = list(run.journal.load().values())
    assert {(trial.kernel, tuple(trial.config.items())): trial.status for trial in trials} == run.compiled.status
    for trial in trials:
        assert (trial.family, trial.arch, trial.compute_units, trial.sizes) == (FAMILY, "gfx950", 256, None)
        assert dict(trial.environment) == environment()


def test_progress_never_goes_back_and_ends_complete(run: Run) -> None:
    done = [report[0] for report in run.reports]
    assert done == sorted(done)
    assert all(report[0] <= report[1] for report in run.reports)
    assert run.reports[-1][:2] == (len(run.compiled.status),) * 2


def test_the_same_run_again_reads_the_journal_and_adds_nothing(run: Run) -> None:
    before = run.journal.path.read_bytes()
    again = compile_family(run.journal.path)
    assert run.journal.path.read_bytes() == before
    assert (again.compiled, again.complete) == (run.compiled, True)


def test_after_the_deadline_the_journals_trials_of_every_round_still_count(run: Run) -> None:
    late = compile_family(run.journal.path, deadline=time.monotonic() - 1)
    assert (late.compiled, late.complete) == (run.compiled, False)


@pytest.mark.parametrize(
    ("arch", "family"),
    [
        (replace(ARCH, compute_units=32), FAMILY),
        (get_arch("gfx942"), FAMILY),
        (ARCH, replace(FAMILY, page_size=32)),
    ],
    ids=["partition", "arch", "family"],
)
def test_trials_of_something_else_do_not_count(run: Run, arch: ArchSpec, family: AttentionFamily) -> None:
    other = compile_family(run.journal.path, arch, family, deadline=time.monotonic() - 1)
    assert other.compiled == Compiled()


def test_the_table_is_within_its_tolerance_of_the_best_prediction_everywhere(run: Run) -> None:
    table = modelled_table(FAMILY, run.compiled.resources, ARCH)
    assert check_family(table) == []
    for problem in size_grid(FAMILY):
        candidates = predicted_candidates(problem, run.compiled.resources, ARCH)
        times = {
            (item.kernel, tuple(sorted(table_config(item.kernel, item.config, problem, ARCH).items()))): item.us
            for item in candidates
        }
        kernel, row = table.find(problem.sizes)
        us = times[kernel, tuple(sorted(row.config.items()))]
        assert us <= min(times.values()) * (1 + TOLERANCE) * 1.002  # ties go to the simpler configuration
        assert row.evidence == "modelled"
        assert row.us is not None
        assert row.us[0] * 0.999 <= us <= row.us[1] * 1.001  # rounded


def test_a_table_of_nothing_is_refused_by_the_familys_name() -> None:
    with pytest.raises(ValueError, match=f"no cell of {FAMILY} has a valid candidate"):
        modelled_table(FAMILY, {}, ARCH)


def trap_run(path: Path, traps: tuple[str, ...], **changes: Any) -> Run:
    """Compile a family for which only a route of traps has configurations, one for each of some statuses."""
    register(trap_kernels.TrapRoute(traps))
    try:
        return compile_family(path, family=trap_kernels.FAMILY, configs_per_family=2 * len(traps), **changes)
    finally:
        registry._KERNELS.pop("trap")


def statuses(run: Run) -> dict[int, str]:
    """The status of each trap that was tried."""
    return {dict(items)["TRAP"]: status for (_, items), status in run.compiled.status.items()}


@pytest.fixture
def cold_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that know nothing, so that the compiler runs."""
    monkeypatch.setenv("ATTN_TUNE_CACHE_DIR", str(tmp_path / "compiles"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.mark.usefixtures("cold_caches")
def test_what_hangs_or_aborts_in_the_compiler_is_recorded_and_the_others_are_tried(tmp_path: Path) -> None:
    traps = ("timeout", "crash", "compile_error", "ok")
    first = trap_run(tmp_path / "trials.jsonl", traps, time_limit=5, jobs=1)
    assert first.complete
    assert statuses(first) == dict(enumerate(traps))
    messages = {trial.status: trial.message for trial in first.journal.load().values()}
    assert messages["timeout"] == "killed after 5 s"
    assert messages["crash"] == "SIGABRT: LLVM ERROR: cannot select"
    assert "this size is not for me" in messages["compile_error"]
    assert {dict(items)["TRAP"] for _, items in first.compiled.resources} == {traps.index("ok")}

    before = first.journal.path.read_bytes()
    again = trap_run(first.journal.path, traps, time_limit=5, jobs=1)
    assert (again.compiled, again.journal.path.read_bytes()) == (first.compiled, before)


@pytest.mark.usefixtures("cold_caches")
def test_a_long_step_exceeds_the_deadline_by_itself_alone_and_the_best_so_far_is_kept(tmp_path: Path) -> None:
    traps = ("ok", *["timeout"] * 5)
    start = time.monotonic()
    run = trap_run(tmp_path / "trials.jsonl", traps, time_limit=3, jobs=1, deadline=start + 3)
    assert time.monotonic() - start < 3 + 3 + 5  # the processes of the compiler take a while to start
    assert not run.complete
    found = statuses(run)
    assert found[0] == "ok"
    assert len(found) <= 2
    assert run.compiled.resources
