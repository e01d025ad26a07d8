"""Comparing a table with the rules: the numbers, and what is refused without a GPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.cli.bench import bench
from attn_tune.device import local_device
from attn_tune.search.bench import CellResult, geomean


def result(us: float | None, **rules: float) -> CellResult:
    return CellResult("family/decode/1x1@1024", us, "exact", "paged_3d", {"BLOCK_M": 16}, rules)


def test_ratio_is_the_best_rules_time_over_the_tables() -> None:
    item = result(10.0, slow=30.0, fast=12.0)
    assert item.ratio == pytest.approx(1.2)
    assert item.against("slow") == pytest.approx(3.0)
    assert item.against("absent") is None


@pytest.mark.parametrize("item", [result(None, fast=12.0), result(10.0), result(None)])
def test_a_failure_has_no_ratio(item: CellResult) -> None:
    assert item.ratio is None
    assert item.us is not None or item.against("fast") is None


def test_a_result_is_json_with_its_ratio() -> None:
    item = result(10.0, fast=12.0)
    values = json.loads(json.dumps(item.to_dict()))
    assert values["ratio"] == pytest.approx(1.2)
    assert CellResult(**{name: value for name, value in values.items() if name != "ratio"}) == item


@pytest.mark.parametrize(
    ("values", "expected"), [([2.0, 8.0], 4.0), ([2.0, None, 8.0], 4.0), ([1.5], 1.5), ([0.5, 2.0], 1.0)]
)
def test_geomean_is_of_the_values_that_are_there(values: list[float | None], expected: float) -> None:
    assert geomean(values) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [None]])
def test_geomean_of_nothing_is_not_a_number(values: list[None]) -> None:
    assert math.isnan(geomean(values))


@pytest.mark.skipif(local_device() is not None, reason="would measure")
@pytest.mark.parametrize("arguments", [[], ["--arch", "gfx950"], ["--json"]])
def test_without_a_gpu_bench_says_so_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    code = "from attn_tune.cli import main; main()"
    command = [sys.executable, "-c", code, "bench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "attn-tune: bench needs a GPU, and none was found\n"


@pytest.mark.skipif(local_device() is not None, reason="would measure")
def test_without_a_gpu_the_verb_raises() -> None:
    with pytest.raises(ValueError, match="needs a GPU"):
        bench()
