from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.trial import STATUSES, Trial

MakeTrial = Callable[..., Trial]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (20, 4, 70000), None])
def test_every_trial_survives_json(make_trial: MakeTrial, status: str, sizes: tuple[int, int, int] | None) -> None:
    trial = make_trial(status=status, sizes=sizes, message='two\nlines, a "quote" and \udcff', resources=None)
    line = trial.to_json()
    assert "\n" not in line
    assert Trial.from_json(line) == trial
    assert Trial.from_json(line).identity == trial.identity


@pytest.mark.parametrize(
    "changes",
    [
        {"family": AttentionFamily(16, 1, 128)},
        {"sizes": (20, 4, 70001)},
        {"sizes": None},
        {"kernel": "paged_2d"},
        {"config": {"BLOCK_M": 32}},
        {"arch": "gfx942"},
        {"compute_units": 32},
        {"environment": {"triton": "3.9.1", "kernels": "5f3a9c0e", "policy": "graph-30"}},
        {"environment": {"triton": "3.9.0", "kernels": "00000000", "policy": "graph-30"}},
        {"environment": {"triton": "3.9.0", "kernels": "5f3a9c0e", "policy": "events-10"}},
    ],
)
def test_identity_changes_with_what_makes_a_rerun_worthwhile(make_trial: MakeTrial, changes: dict[str, Any]) -> None:
    assert make_trial(**changes).identity != make_trial().identity


@pytest.mark.parametrize(
    "changes",
    [
        {"us": 5.0, "spread": None, "samples": 0, "error": None, "message": "again", "resources": None},
        {"status": "timeout"},
        {"arch": "AMD Instinct MI355X"},
        {"config": {"num_stages": 2, "num_warps": 2, "NUM_SEGMENTS": 64, "TILE_SIZE": 32, "BLOCK_M": 32}},
        {"environment": {"policy": "graph-30", "kernels": "5f3a9c0e", "triton": "3.9.0", "attn_tune": "9.9"}},
    ],
)
def test_identity_ignores_results_order_and_aliases(make_trial: MakeTrial, changes: dict[str, Any]) -> None:
    assert make_trial(**changes).identity == make_trial().identity


def test_identity_is_the_same_in_every_process(make_trial: MakeTrial) -> None:
    code = "import sys; from attn_tune.store.trial import Trial; print(Trial.from_json(sys.argv[1]).identity)"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, make_trial().to_json()]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert out.strip() == make_trial().identity


@pytest.mark.parametrize("us", [math.nan, math.inf, -math.inf, 0, -1.5, None])
def test_an_impossible_time_is_never_ok(make_trial: MakeTrial, us: float | None) -> None:
    trial = make_trial(us=us)
    assert (trial.status, trial.us) == ("invalid_time", None)
    json.loads(trial.to_json(), parse_constant=pytest.fail)  # NaN and Infinity are not JSON


def test_a_compile_only_trial_needs_no_time(make_trial: MakeTrial) -> None:
    assert make_trial(sizes=None, us=None).status == "ok"


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_error_that_is_not_finite_is_a_wrong_result(make_trial: MakeTrial, error: float) -> None:
    trial = make_trial(error=error)
    assert (trial.status, trial.error) == ("wrong_result", None)
    assert f"error was {error}" in trial.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", "16/1/256"),
        ("sizes", (1, 2)),
        ("sizes", (1, 0, 5)),
        ("kernel", None),
        ("config", {"BLOCK_M": 16.0}),
        ("config", {"BLOCK_M": True}),
        ("compute_units", 0),
        ("status", "fine"),
        ("evidence", "guessed"),
        ("us", "fast"),
        ("samples", -1),
        ("environment", {"triton": 3.9}),
    ],
)
def test_a_bad_field_is_named(make_trial: MakeTrial, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        make_trial(**{field: value})


def test_json_with_other_fields_is_refused_by_name(make_trial: MakeTrial) -> None:
    values = json.loads(make_trial().to_json())
    with pytest.raises(ValueError, match="unknown trial field: colour"):
        Trial.from_json(json.dumps(values | {"colour": 1}))
    del values["kernel"], values["us"]
    with pytest.raises(ValueError, match="missing trial field: kernel, us"):
        Trial.from_json(json.dumps(values))


@pytest.mark.parametrize("line", ["", "{", "[]", "null", "[" * 100_000, '{"family": 1}'])
def test_json_that_is_no_trial_is_refused(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Trial.from_json(line)


@pytest.mark.parametrize("field", ["family", "sizes", "config", "environment", "resources"])
def test_json_of_the_wrong_shape_is_refused(make_trial: MakeTrial, field: str) -> None:
    values = json.loads(make_trial().to_json()) | {field: "text"}
    with pytest.raises(ValueError, match=f"^{field} must"):
        Trial.from_json(json.dumps(values))


def test_resources_that_are_not_json_are_refused(make_trial: MakeTrial) -> None:
    with pytest.raises(ValueError, match="resources"):
        make_trial(resources={"asm": b"\0"}).to_json()
