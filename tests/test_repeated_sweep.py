"""The benchmark that reports how often a repeated sweep changes the winner, on two journals of a made-up device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.search.measure_cell import RACE_POLICY
from attn_tune.store.journal import Journal
from attn_tune.store.trial import Trial

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "repeated_sweep.py"
FAMILY = AttentionFamily(16, 1, 128)
CONFIG = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 16, "num_warps": 2, "num_stages": 2, "KEYS_FIRST": 0}


def write_sweep(path: Path, times: dict[int, tuple[float, float]]) -> Path:
    """A journal with finals of two configurations, which no rule chooses, at some numbers of keys."""
    for keys, pair in times.items():
        for num_warps, us in zip((2, 4), pair, strict=True):
            trial = Trial(
                FAMILY, (8, 1, keys), "paged_3d", CONFIG | {"num_warps": num_warps}, "sm_90", 132, "ok", "measured",
                us=us, spread=0.001, samples=9, error=2e-3, environment={"policy": RACE_POLICY},
            )  # fmt: skip
            Journal(path).append(trial)
    return path


@pytest.mark.parametrize(
    ("again", "report"),
    [
        ((10.4, 10.0), "1 of 4 winners changed (25%)"),
        ((10.01, 10.0), "0 of 4 winners changed (0%)"),  # a tie, which the simpler one wins
    ],
)
def test_changed_winners_and_their_cost_are_reported(tmp_path: Path, again: tuple[float, float], report: str) -> None:
    times = dict.fromkeys((1024, 8192, 32768, 131072), (10.0, 10.2))
    first = write_sweep(tmp_path / "first.jsonl", times)
    second = write_sweep(tmp_path / "second.jsonl", times | {8192: again})
    command = [sys.executable, str(SCRIPT), str(first), str(second)]
    last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert last.startswith(f"{report}; cost over all cells: geomean ")
    assert last.endswith(f"worst {1.04 if report[0] == '1' else 1.0:.3f}; 0 costs unknown")
