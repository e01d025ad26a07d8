"""The search of one cell: on recorded measurements of an H200, and on made-up ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from estimates import estimated

from attn_tune.arch import get_arch
from attn_tune.evaluate.measure import Measurement
from attn_tune.evaluate.resources import Resources
from attn_tune.kernels import get_kernel
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.bench import geomean
from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY
from attn_tune.search.predictions import Compilation, predicted_candidates, rule_configs
from attn_tune.search.propose import rule_compilations, space
from attn_tune.search.staged import Effort, Key, full_key, search_cell, search_cell_exhaustively
from attn_tune.store.journal import Journal
from attn_tune.testing.replay import Record, RecordedCell, identity, recorded_cells, replay

RECORD = Path(__file__).parents[2] / "benchmarks" / "data" / "sm_90_exhaustive.trials.jsonl.xz"
ARCH = get_arch("sm_90")
FAMILY = AttentionFamily(16, 1, 128)
PROBLEM = AttentionProblem(FAMILY, 8, 4, 8192)
BOTH = pytest.mark.parametrize("search", [search_cell, search_cell_exhaustively])


@pytest.fixture(scope="module")
def cells() -> list[RecordedCell]:
    return recorded_cells(Journal(RECORD).load().values())


def test_staged_search_is_nearly_as_good_as_exhaustive_for_a_tenth_of_the_timings(cells: list[RecordedCell]) -> None:
    results = [replay(cell) for cell in cells]
    assert len(results) >= 8
    assert min(len(cell.trials) for cell in cells) > 2 * 30  # small sets would be searched whole
    assert geomean(item.ratio for item in results) <= 1.02
    assert max(item.ratio for item in results) <= 1.05
    assert sum(item.timed for item in results) <= 0.10 * sum(len(cell.trials) for cell in cells)


def test_exhaustive_search_finds_the_best_on_record(cells: list[RecordedCell]) -> None:
    smallest = min(cells, key=lambda cell: len(cell.trials))
    result = replay(smallest, search_cell_exhaustively)
    assert result.ratio == 1.0
    assert result.share == 1.0


def test_recorded_times_are_those_of_the_screening(cells: list[RecordedCell]) -> None:
    recorded = [trial for trial in Journal(RECORD).load().values() if trial.sizes is not None]
    assert sum(len(cell.trials) for cell in cells) == sum(
        trial.environment["policy"] == SCREEN_POLICY for trial in recorded
    )
    assert {trial.environment["policy"] for trial in recorded} == {SCREEN_POLICY, RACE_POLICY}


def test_what_is_not_on_record_counts_as_timed_and_does_not_run(cells: list[RecordedCell]) -> None:
    record = Record(replace(cells[0], trials={}))
    key: Key = ("paged_2d", (("BLOCK_M", 16),))
    assert [item.status for item in record.measure([key], False)] == ["pruned"]
    assert record.timed == {identity(key)}
    with pytest.raises(ValueError, match="nothing runs"):
        replay(replace(cells[0], trials={}))


@pytest.fixture(scope="module")
def compiled() -> dict[Compilation, Resources]:
    """The rules' compilations, and some of every kind."""
    keys = [*rule_compilations(FAMILY, ARCH), *space(FAMILY, ARCH)[::9]]
    return estimated(keys, FAMILY, ARCH)


class Device:
    """A made-up GPU: the predicted time of each configuration times a factor of its own, or a failure."""

    def __init__(self, compiled: Mapping[Compilation, Resources], factor: Callable[[Key], float | str]) -> None:
        self.predicted = {
            (item.kernel, tuple(item.config.items())): item.us for item in predicted_candidates(PROBLEM, compiled, ARCH)
        }
        self.factor = factor
        self.screened: list[Key] = []
        self.final: list[Key] = []

    def measure(self, keys: Sequence[Key], careful: bool) -> list[Measurement]:
        (self.final if careful else self.screened).extend(keys)
        return [self._measurement(key) for key in keys]

    def _measurement(self, key: Key) -> Measurement:
        factor = self.factor(key)
        if isinstance(factor, str):
            return Measurement(factor, us=0.0 if factor == "invalid_time" else None)
        return Measurement("ok", self.predicted[key] * factor, 0.01, 5, 1e-3)

    def times(self, keys: Collection[Key]) -> dict[Key, float]:
        found = {key: self._measurement(key).us for key in keys}
        return {key: us for key, us in found.items() if us is not None}


def rule_keys() -> set[Key]:
    return {full_key(*choice) for choice in rule_configs(PROBLEM, ARCH).values()}


def uneven(key: Key) -> float:
    """A factor between 0.7 and 1.4 that says nothing about the neighbours'."""
    return 0.7 + (sum(value * (index + 3) for index, (_, value) in enumerate(key[1])) % 71) / 100


@BOTH
def test_the_best_rule_is_in_the_final_however_slow(search: Any, compiled: dict[Compilation, Resources]) -> None:
    device = Device(compiled, lambda key: 50.0 if key in rule_keys() else 1.0)
    results = search(PROBLEM, compiled, ARCH, device.measure, Effort())
    times = device.times(rule_keys())
    best_rule = min(times, key=lambda key: times[key])
    assert best_rule in results
    assert sum(key in rule_keys() for key in results) == 1
    assert set(device.final) == set(results)


@BOTH
@pytest.mark.parametrize("status", ["wrong_result", "invalid_time", "timeout", "crash", "compile_error"])
def test_what_failed_never_reaches_the_final(search: Any, status: str, compiled: dict[Compilation, Resources]) -> None:
    def factor(key: Key) -> float | str:
        return status if dict(key[1])["num_warps"] == 4 else 1.0

    device = Device(compiled, factor)
    results = search(PROBLEM, compiled, ARCH, device.measure, Effort())
    assert any(factor(key) == status for key in device.screened)
    assert results
    assert not any(factor(key) == status for key in device.final)


@BOTH
def test_nothing_runs(search: Any, compiled: dict[Compilation, Resources]) -> None:
    device = Device(compiled, lambda key: "wrong_result")
    assert search(PROBLEM, compiled, ARCH, device.measure, Effort()) == {}
    assert device.final == []


@BOTH
def test_without_anything_compiled_the_rules_are_measured(search: Any, compiled: dict[Compilation, Resources]) -> None:
    device = Device(compiled, lambda key: 1.0)
    results = search(PROBLEM, {}, ARCH, device.measure, Effort())
    assert set(device.screened) == rule_keys()
    assert set(results) <= rule_keys()


@BOTH
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_configuration_is_screened_twice(search: Any, seed: int, compiled: dict[Compilation, Resources]) -> None:
    device = Device(compiled, lambda key: uneven(key) ** seed)
    search(PROBLEM, compiled, ARCH, device.measure, Effort())
    assert len(device.screened) == len({identity(key) for key in device.screened})
    assert len(device.final) == len({identity(key) for key in device.final})
    assert {identity(key) for key in device.final} <= {identity(key) for key in device.screened}


@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_exhaustive_search_finds_an_optimum_that_the_model_does_not_expect(
    place: float, compiled: dict[Compilation, Resources]
) -> None:
    ranked = sorted(Device(compiled, lambda key: 1.0).predicted.items(), key=lambda item: item[1])
    planted, us = ranked[round(place * (len(ranked) - 1))]
    device = Device(compiled, lambda key: 0.5 * ranked[0][1] / us if key == planted else 1.0)
    results = search_cell_exhaustively(PROBLEM, compiled, ARCH, device.measure, Effort())
    assert min(results, key=lambda key: results[key].us or math.inf) == planted


def test_a_compilation_that_beats_its_prediction_is_looked_at_again(compiled: dict[Compilation, Resources]) -> None:
    """The model expects little of a rule's compilation, but it is fast: its other segment counts get their turn."""
    rule, segments = next(choice for choice in rule_configs(PROBLEM, ARCH).values() if choice[0][0] == "paged_3d")
    times = Device(compiled, lambda key: 1.0).predicted
    own = {key: us for key, us in times.items() if full_key(rule, dict(key[1])["NUM_SEGMENTS"]) == key}
    speedup = 0.5 * min(times.values()) / min(own.values())
    device = Device(compiled, lambda key: speedup if key in own else 1.0)
    results = search_cell(PROBLEM, compiled, ARCH, device.measure, Effort())
    assert full_key(rule, segments) in device.screened
    assert min(results, key=lambda key: results[key].us or math.inf) == min(own, key=lambda key: own[key])


@pytest.mark.parametrize("effort", [Effort(), Effort(favourites=5, second_looks=2, finalists=3)])
def test_effort_bounds_the_timings(effort: Effort, compiled: dict[Compilation, Resources]) -> None:
    device = Device(compiled, uneven)
    search_cell(PROBLEM, compiled, ARCH, device.measure, effort)
    assert len(device.screened) <= effort.favourites + effort.second_looks + len(rule_keys())
    assert len(device.final) <= effort.finalists + 1


def test_finalists_are_near_the_best_screened_time(compiled: dict[Compilation, Resources]) -> None:
    device = Device(compiled, uneven)
    search_cell(PROBLEM, compiled, ARCH, device.measure, Effort())
    best = min(device.times(device.screened).values())
    others = [key for key in device.final if key not in rule_keys()]
    assert max(device.times(others).values()) <= best * Effort().within


def test_segment_counts_differ_among_the_candidates(compiled: dict[Compilation, Resources]) -> None:
    """The fixture offers something to choose from."""
    segments = {dict(key[1])["NUM_SEGMENTS"] for key in Device(compiled, uneven).predicted}
    assert len(segments) > 3
    assert {key[0] for key in compiled} == {"paged_2d", "paged_3d"}
    assert all(get_kernel(key[0]).supports(FAMILY, ARCH) is None for key in compiled)
