"""Comparing a table with the rules: the numbers, what becomes of a cell that loses, and what is refused without a GPU.

Where a GPU would be needed, the workers run a stub.
"""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from measure_tasks import Stub
from sample_tables import family_rows, write_sample
from sample_tables import user_tables as user_tables
from tiny_sweeps import FAMILY, shared_caches
from typer.testing import CliRunner

from attn_tune import get_config
from attn_tune.cli.bench import bench
from attn_tune.device import LocalDevice, local_device
from attn_tune.search.bench import CellResult, geomean
from attn_tune.search.staged import Identity, identity


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


CELLS = """
- {name: few, num_query_heads: 4, num_kv_heads: 1, head_size: 64, num_seqs: 1, max_seqlen_q: 1, max_seqlen_k: 8192}
- {name: many, num_query_heads: 4, num_kv_heads: 1, head_size: 64, num_seqs: 99, max_seqlen_q: 1, max_seqlen_k: 8192}
"""


@pytest.fixture
def run_bench(
    user_tables: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Stub], tuple[int, dict[str, Any]]]:
    """``run_bench(stub)``: exit status and JSON of a bench of two cells on a GPU that is there by name only."""
    write_sample(user_tables, family_rows(FAMILY))
    (tmp_path / "cells.yaml").write_text(CELLS)
    for name, value in shared_caches(tmp_path_factory).items():
        monkeypatch.setenv(name, value)
    app = typer.Typer()
    app.command()(bench)

    def run(stub: Stub) -> tuple[int, dict[str, Any]]:
        command = importlib.import_module("attn_tune.cli.bench")
        monkeypatch.setattr(command, "local_device", lambda: LocalDevice("gfx950", 256, "AMD Instinct MI355X"))
        monkeypatch.setattr("attn_tune.search.bench.measure", stub)
        result = CliRunner().invoke(app, ["--cells", str(tmp_path / "cells.yaml"), "--json"])
        return result.exit_code, json.loads(result.stdout)

    return run


def answer(num_seqs: int) -> Identity:
    """What the table runs in one of the cells."""
    found = get_config(arch="gfx950", **vars(FAMILY), num_seqs=num_seqs, max_seqlen_q=1, max_seqlen_k=8192)
    return identity((found.route, tuple(found.config.items())))


@pytest.mark.parametrize(("us", "status"), [(5.0, 0), (50.0, 1)])
def test_a_cell_that_is_slower_than_a_rule_fails_the_bench(
    run_bench: Callable[[Stub], tuple[int, dict[str, Any]]], tmp_path: Path, us: float, status: int
) -> None:
    times = {answer(1): 5.0, answer(99): us}
    code, out = run_bench(Stub(str(tmp_path / "log"), times=times))
    assert code == status
    assert [(cell["name"], cell["source"], cell["us"]) for cell in out["cells"]] == [
        ("few", "exact", 5.0),
        ("many", "exact", us),
    ]
    ratios = [min(cell["rules"].values()) / cell["us"] for cell in out["cells"]]
    assert [cell["ratio"] for cell in out["cells"]] == pytest.approx(ratios)
    assert out["worst"] == pytest.approx(min(ratios))
    assert (out["worst"] < 0.97) == bool(status)


@pytest.mark.parametrize(("fault", "words"), [("abort", "SIGABRT"), ("wrong_result", ""), ("invalid_time", "")])
def test_a_cell_whose_answer_fails_fails_the_bench_and_the_next_is_timed(
    run_bench: Callable[[Stub], tuple[int, dict[str, Any]]], tmp_path: Path, fault: str, words: str
) -> None:
    stub = Stub(str(tmp_path / "log"), race_faults={answer(1): fault}, times={answer(99): 5.0})
    code, out = run_bench(stub)
    few, many = out["cells"]
    assert code == 1
    assert few["ratio"] is None
    assert words in few["message"]
    assert many["ratio"] > 1


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
