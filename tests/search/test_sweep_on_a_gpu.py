"""`attn-tune sweep` on a GPU that is there by name only: its worker runs a stub, everything else is real."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from measure_tasks import Stub
from measured_runs import ARCH, FAMILY, log_lines, stub_machines
from measured_runs import journal as journal
from measured_runs import log as log
from tiny_sweeps import shapes_file
from typer.testing import CliRunner

from attn_tune.cli.sweep import sweep
from attn_tune.device import LocalDevice
from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY
from attn_tune.search.measured import measured_grid
from attn_tune.store.check import check_table
from attn_tune.store.journal import Journal
from attn_tune.store.load import load_table
from attn_tune.store.trial import Trial

Invoke = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def invoke(journal: Journal, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command on a made-up H200; returns exit status and summary. Its compilations are in the journal."""
    shapes = shapes_file(tmp_path, "- {num_query_heads: 16, num_kv_heads: 1, head_size: 128}\n")
    machines = replace(stub_machines(Stub(log)), find_device=lambda: LocalDevice(ARCH.name, 132, "NVIDIA H200"))
    monkeypatch.setattr(importlib.import_module("attn_tune.cli.sweep"), "this_machine", lambda devices: machines)
    app = typer.Typer()
    app.command()(sweep)
    paths = ("--shapes", str(shapes), "--out", str(journal.path.with_name("sm_90.yaml")))

    def run() -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(app, [*paths, "--configs", "1", "--json"])
        return result.exit_code, json.loads(result.stdout)

    return run


def test_every_size_is_measured_once_and_the_table_names_the_policy(journal: Journal, log: str, invoke: Invoke) -> None:
    code, summary = invoke()
    assert (code, summary["complete"], summary["evidence"]) == (0, True, "measured")
    assert summary["measuring_seconds"] > 0
    asked = [tuple(line[2:]) for line in log_lines(log)]
    measured = [trial for trial in journal.load().values() if trial.sizes]
    assert len(set(asked)) == len(asked) == len(measured)
    assert {sizes for sizes, _, _ in asked} == {str(problem.sizes) for problem in measured_grid(FAMILY)}
    table = load_table(journal.path.with_name("sm_90.yaml"))
    assert check_table(table) == []
    assert table.built_with["policy"] == RACE_POLICY
    assert {row.evidence for rows in table.families[0].configs.values() for row in rows} == {"measured"}


def test_a_size_at_which_everything_failed_is_named_and_the_exit_status_says_so(
    journal: Journal, log: str, invoke: Invoke
) -> None:
    invoke()
    problem = measured_grid(FAMILY)[7]
    lines = []
    for line in journal.path.read_text().splitlines():
        trial = Trial.from_json(line)
        if trial.sizes != problem.sizes:
            lines.append(line)
        elif trial.environment["policy"] == SCREEN_POLICY:
            lines.append(replace(trial, status="crash", us=None, spread=None, samples=0, error=None).to_json())
    journal.path.write_text("\n".join(lines) + "\n")
    asked = len(log_lines(log))
    code, summary = invoke()
    assert (code, summary["complete"], summary["sizes_without_time"]) == (1, True, [str(problem)])
    assert len(log_lines(log)) == asked  # a failure is known, too
