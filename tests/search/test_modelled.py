"""Tuning without a GPU, with real compilations of a small family."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tiny_sweeps import FAMILY, shared_caches

from attn_tune.arch import ArchSpec, get_arch
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


def compile_family(
    path: Path, arch: ArchSpec = ARCH, family: AttentionFamily = FAMILY, deadline: float | None = None
) -> Run:
    run = Run(Journal(path), Compiled(), False)
    states, run.complete = compile_families(
        [family],
        arch,
        run.journal,
        configs_per_family=4,
        time_limit=60,
        jobs=2,
        deadline=deadline,
        progress=lambda *report: run.reports.append(report),
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
