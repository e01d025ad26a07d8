"""Tables from the finals in a journal: who wins, and what does not count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from attn_tune.arch import get_arch
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY
from attn_tune.search.measured import measured_grid, measured_table
from attn_tune.search.modelled import environment
from attn_tune.search.predictions import rule_configs
from attn_tune.search.staged import Key, full_key
from attn_tune.search.tables import table_config
from attn_tune.store.table import ConfigRow, FamilyTable
from attn_tune.store.trial import Trial

ARCH = get_arch("sm_90")
FAMILY = AttentionFamily(16, 1, 128)
PROBLEM = AttentionProblem(FAMILY, 8, 4, 8192)
RULE: Key = full_key(*next(iter(rule_configs(PROBLEM, ARCH).values())))
OTHER: Key = (RULE[0], tuple((name, 2 * value if name == "num_stages" else value) for name, value in RULE[1]))


def final(key: Key, us: float | None, spread: float = 0.001, **changes: Any) -> Trial:
    """A trial of a final at PROBLEM."""
    environ = environment() | {"policy": RACE_POLICY} | changes.pop("versions", {})
    trial = Trial(
        FAMILY, PROBLEM.sizes, key[0], dict(key[1]), ARCH.name, ARCH.compute_units, "ok", "measured",
        us=us, spread=spread, samples=9, error=2e-3, environment=environ,
    )  # fmt: skip
    return replace(trial, **changes)


def in_table(key: Key) -> dict[str, int]:
    """A configuration as PROBLEM's row has it."""
    return dict(table_config(key[0], dict(key[1]), PROBLEM, ARCH))


def table(trials: Iterable[Trial]) -> FamilyTable:
    return measured_table(FAMILY, {trial.identity: trial for trial in trials}, ARCH)


def only_row(trials: Iterable[Trial]) -> ConfigRow:
    ((row,),) = table(trials).configs.values()
    return row


@pytest.mark.parametrize(
    ("us", "spread", "winner"),
    [
        (90.0, 0.001, OTHER),
        (99.0, 0.001, OTHER),
        (90.0, 0.02, OTHER),
        (100.1, 0.001, RULE),
        (110.0, 0.001, RULE),
    ],
)
def test_a_rule_gives_way_only_to_a_faster_one(us: float, spread: float, winner: Key) -> None:
    row = only_row([final(RULE, 100.0, spread), final(OTHER, us, spread)])
    assert row.config == in_table(winner)
    assert row.evidence == "measured"


def test_a_row_says_what_it_gained_and_how_sure_that_is() -> None:
    row = only_row([final(RULE, 100.0, 0.002), final(OTHER, 80.0, 0.003)])
    assert row.best_rule == pytest.approx(1.25)
    assert (row.us, row.regret, row.spread, row.samples, row.error) == ((80.0, 80.0), 1.0, 0.003, 9, 2e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": {"policy": SCREEN_POLICY}},
        {"versions": {"policy": "graph-replay-cold-kv-0/race"}},
        {"versions": {"triton": "2.0.0"}},
        {"versions": {"kernels": "00000000"}},
        {"arch": "sm_100"},
        {"compute_units": 66},
        {"sizes": None},
        {"status": "wrong_result"},
        {"status": "timeout"},
        {"us": float("nan")},
        {"us": -1.0},
        {"us": 0.0},
        {"error": 1e-1},  # fast, but its error is 50 times that of the rule
    ],
    ids=str,
)
def test_what_does_not_count_never_wins(changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"us": 1.0} | changes
    fast = final(OTHER, arguments.pop("us"), **arguments)
    assert only_row([final(RULE, 100.0), fast]).config == in_table(RULE)
    assert only_row([fast, final(RULE, 100.0)]).config == in_table(RULE)


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [final(RULE, None)],
        [final(RULE, float("inf")), final(OTHER, 0.0)],
        [final(RULE, 1.0, status="crash")],
        [final(RULE, 1.0, versions={"policy": SCREEN_POLICY})],
        [final(RULE, 1.0, family=AttentionFamily(8, 1, 128))],
    ],
)
def test_without_a_valid_final_there_is_no_table(trials: list[Trial]) -> None:
    with pytest.raises(ValueError, match="valid candidate"):
        table(trials)


def test_a_cell_without_a_valid_final_takes_its_neighbours_answer() -> None:
    elsewhere = final(RULE, None, sizes=(1, 1, 1024))
    assert only_row([final(RULE, 100.0), elsewhere]).config == in_table(RULE)


def test_the_order_of_trials_does_not_matter() -> None:
    trials = [final(key, us, sizes=(seqs, 4, 8192)) for seqs in (1, 8, 64) for key, us in ((RULE, 9.0), (OTHER, 8.0))]
    assert table(trials) == table(reversed(trials))


@pytest.mark.parametrize("family", [FAMILY, AttentionFamily(32, 4, 512, page_size=32)])
def test_the_grid_holds_decode_verify_and_prefill_within_the_memory(family: AttentionFamily) -> None:
    grid = measured_grid(family)
    assert len(set(grid)) == len(grid) >= 150
    queries = sorted({problem.max_seqlen_q for problem in grid})
    assert all(longer <= 8 * shorter for shorter, longer in pairwise(queries))  # a wide gap once hid a bad route
    assert max(item.num_seqs * item.max_seqlen_k * family.bytes_per_token for item in grid) <= 80e9
