from __future__ import annotations

import math
from typing import Any

import pytest

from attn_tune.store.winner import Candidate, acceptable, comparable, simplicity, winner


def candidate(us: float, kernel: str = "paged_3d", evidence: str = "measured", **changes: Any) -> Candidate:
    fields = {name: changes.pop(name) for name in ("spread", "samples", "error", "rules") if name in changes}
    return Candidate(kernel, {"BLOCK_M": 16, "TILE_SIZE": 32, **changes}, us, evidence, **fields)


@pytest.mark.parametrize("us", [math.nan, math.inf, -math.inf, 0.0, -3.0])
def test_an_impossible_time_cannot_win(us: float) -> None:
    assert [item.us for item in comparable([candidate(us, num_warps=2), candidate(50.0, num_warps=4)])] == [50.0]
    assert comparable([candidate(us)]) == []


def test_measured_beats_modelled_beats_rule() -> None:
    items = [
        candidate(1.0, evidence="rule", num_warps=1),
        candidate(2.0, evidence="modelled", num_warps=2),
        candidate(3.0, evidence="measured", num_warps=4),
    ]
    assert winner(comparable(items)).us == 3.0
    assert winner(comparable(items[:2])).us == 2.0


def test_a_config_with_a_much_larger_error_is_dropped() -> None:
    items = [candidate(9.0, error=1e-3, num_warps=2), candidate(5.0, error=2.9e-3, num_warps=4)]
    wrong = [candidate(1.0, error=3.1e-3, num_warps=8), candidate(1.0, error=math.nan, num_warps=1)]
    assert sorted(item.us for item in comparable(items + wrong)) == [5.0, 9.0]


def test_an_exact_result_does_not_disqualify_the_rest() -> None:
    assert len(comparable([candidate(9.0, error=0.0, num_warps=2), candidate(5.0, error=1e-6, num_warps=4)])) == 2


def test_a_candidate_given_twice_counts_once() -> None:
    assert [item.us for item in comparable([candidate(9.0), candidate(5.0)])] == [5.0]


@pytest.mark.parametrize(
    ("challenger_us", "spread", "expected"),
    [(99.0, None, 99.0), (97.0, 0.02, 97.0), (98.7, 0.02, 100.0), (99.0, 0.05, 100.0), (101.0, None, 100.0)],
)
def test_a_rule_gives_way_only_beyond_the_noise(challenger_us: float, spread: float | None, expected: float) -> None:
    rule = candidate(100.0, spread=spread and spread / 2, rules=("aiter",), NUM_SEGMENTS=128)
    challenger = candidate(challenger_us, spread=spread and spread / 2, NUM_SEGMENTS=8)
    assert winner([rule, challenger]).us == expected


@pytest.mark.parametrize(
    ("simple", "other"),
    [
        ({"NUM_SEGMENTS": 8, "num_stages": 4}, {"NUM_SEGMENTS": 16, "num_stages": 1}),
        ({"NUM_SEGMENTS": 64}, {"NUM_PROGRAMS": 264}),  # too few programs to fill the device
        ({"NUM_PROGRAMS": 264, "num_stages": 4}, {"NUM_PROGRAMS": 528, "num_stages": 1}),
        ({"num_stages": 1, "num_warps": 8}, {"num_stages": 2, "num_warps": 1}),
        ({"num_warps": 2, "BLOCK_M": 64}, {"num_warps": 4, "BLOCK_M": 16}),
        ({"BLOCK_M": 16, "TILE_SIZE": 64}, {"BLOCK_M": 32, "TILE_SIZE": 16}),
        ({"TILE_SIZE": 16}, {"TILE_SIZE": 32}),
        ({"kernel": "paged_2d"}, {"kernel": "paged_1d"}),
    ],
)
def test_ties_go_to_the_simpler_config(simple: dict[str, Any], other: dict[str, Any]) -> None:
    assert winner([candidate(100.0, **other), candidate(100.1, **simple)]).us == 100.1
    assert winner([candidate(100.0, **other), candidate(100.3, **simple)]).us == 100.0


def test_segments_do_not_change_the_compilation() -> None:
    assert candidate(1.0, NUM_SEGMENTS=8).compilation == candidate(2.0, NUM_SEGMENTS=64).compilation
    assert candidate(1.0, NUM_SEGMENTS=8).compilation == candidate(2.0, NUM_PROGRAMS=264).compilation
    assert candidate(1.0, NUM_SEGMENTS=8).key != candidate(2.0, NUM_SEGMENTS=64).key
    assert candidate(1.0, num_warps=2).compilation != candidate(1.0, num_warps=4).compilation


def test_simplicity_orders_any_two_keys() -> None:
    keys = [candidate(1.0, kernel, EXTRA=extra).key for kernel in ("a", "paged_2d") for extra in (2, 1)]
    assert min(keys, key=simplicity) == keys[3]
    assert len({simplicity(key) for key in keys}) == 4


@pytest.mark.parametrize(
    ("evidence", "us", "expected"),
    [
        ("measured", 101.9, False),
        ("measured", 100.9, True),
        ("modelled", 101.9, True),
        ("modelled", 102.1, False),
    ],
)
def test_only_measured_times_must_hold_the_rules_line(evidence: str, us: float, expected: bool) -> None:
    rule = candidate(100.0, evidence=evidence, spread=0.01, rules=("aiter",))
    other = candidate(us, evidence=evidence, num_warps=8)
    assert acceptable([rule, other], 0.02)(other) is expected
    assert acceptable([rule, other], 0.02)(rule)
