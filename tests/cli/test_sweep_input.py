"""`attn-tune sweep` before any work is done: mistakes in its input, tables it must not spoil, and the dry run."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_tables import FAMILY, family_rows, write_sample
from tiny_sweeps import SHAPE, shapes_file

from attn_tune.arch import get_arch
from attn_tune.cli import main
from attn_tune.device import local_device
from attn_tune.evaluate.workers import WorkerStartError
from attn_tune.models import find_model
from attn_tune.problem import AttentionFamily
from attn_tune.search.grid import size_grid
from attn_tune.search.propose import first_round

Sweep = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """``sweep(*arguments)`` in an empty directory: its exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    shapes_file(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["attn-tune", "sweep", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--arch", "gfx95"), "arch 'gfx95' is unknown; known archs: gfx942, gfx950"),
        (("--model", "Llama-3-7B"), "model 'Llama-3-7B' is unknown; nearest: Llama-3-"),
        (("--model", "Llama-3-8B", "--tp", "3"), "model Llama-3-8B: tp 3 does not divide"),
        (("--tp", "2"), "--tp needs --model"),
        (("--shapes", "shapes.yaml", "--model", "Llama-3-8B"), "--shapes cannot be combined with --model"),
        (("--shapes", "absent.yaml"), "No such file or directory: 'absent.yaml'"),
        (("--configs", "0"), "--configs must be positive, not 0"),
        (("--jobs", "-1"), "--jobs must be positive, not -1"),
        (("--budget", "0"), "--budget must be positive, not 0"),
        (("--budget", "nan"), "--budget must be positive, not nan"),
        (("--time-limit", "0"), "--time-limit must be positive, not 0"),
        (("--evaluator", "gpu"), "--evaluator must be auto, device or compile, not 'gpu'"),
        (("--search", "random"), "--search must be staged or exhaustive, not 'random'"),
        (("--shapes", "shapes.yaml", "--out", "/dev/null/table.yaml"), "/dev/null/table.yaml: cannot be read: Not a "),
        (("--shapes", "shapes.yaml", "--out", "/proc/none/table.yaml"), "No such file or directory: '/proc/none'"),
        (("--shapes", "shapes.yaml", "--out", "."), ".: is not a regular file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    sweep: Sweep, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    code, out, err = sweep("--arch", "gfx950", "--evaluator", "compile", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("attn-tune: ")
    assert reason in err
    assert [path.name for path in tmp_path.iterdir()] == ["shapes.yaml"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SHAPE + SHAPE.replace("head_size: 64", "head_size: 4"), "shapes.yaml:2: [1]: head_size must be an integer"),
        (SHAPE + SHAPE.replace("head_size", "head_dim"), "shapes.yaml:2: [1]: unknown problem field 'head_dim'"),
        (f"\n{SHAPE}- 5\n", "shapes.yaml:3: [1]: must be a mapping"),
        (f"{SHAPE}- {{num_query_heads: 4\n", "is not valid YAML"),
    ],
)
def test_a_bad_shape_is_named_with_its_line(sweep: Sweep, tmp_path: Path, text: str, reason: str) -> None:
    shapes_file(tmp_path, text)
    code, _, err = sweep("--arch", "gfx950", "--evaluator", "compile", "--shapes", "shapes.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert reason in err


def test_a_journal_that_cannot_be_read_is_one_line(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "t.trials.jsonl").mkdir()
    code, _, err = sweep(
        "--arch", "gfx950", "--evaluator", "compile", "--shapes", "shapes.yaml", "--out", "t.yaml"
    )  # fmt: skip
    assert (code, err) == (2, "attn-tune: t.trials.jsonl: cannot read the journal: Is a directory\n")


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({"triton": "3.0.1"}, "gfx950", "was built with triton 3.0.1, "),
        ({"kernels": "00000000"}, "gfx950", "kernels 00000000, now it would be attn_tune "),
        ({}, "gfx942", "is a table for gfx950 with 256 compute units, not gfx942 with 304 compute units"),
    ],
)
def test_a_table_that_cannot_be_added_to_is_refused_and_unharmed(
    sweep: Sweep, tmp_path: Path, changes: dict[str, str], arch: str, reason: str
) -> None:
    path = write_sample(tmp_path, family_rows(FAMILY), **changes)
    before = path.read_bytes()
    code, _, err = sweep("--arch", arch, "--evaluator", "compile", "--shapes", "shapes.yaml", "--out", path.name)
    assert (code, err.count("\n")) == (2, 1)
    assert reason in err
    assert "give another --out" in err
    assert path.read_bytes() == before


def test_timing_on_a_gpu_that_is_not_there_names_both(sweep: Sweep) -> None:
    device = local_device()
    arch = "gfx942" if device is None or device.arch != "gfx942" else "gfx950"
    code, _, err = sweep("--arch", arch, "--evaluator", "device", "--shapes", "shapes.yaml")
    found = f"{device.arch} ({device.name})" if device else "no GPU"
    assert (code, err) == (2, f"attn-tune: --evaluator device: --arch is {arch}, but this machine has {found}\n")


@pytest.mark.skipif(local_device() is not None, reason="the local GPU is the default")
def test_without_a_gpu_the_arch_must_be_given(sweep: Sweep) -> None:
    assert sweep("--dry-run") == (2, "", "attn-tune: --arch is needed: no GPU was found on this machine\n")


@pytest.mark.parametrize("devices", ["-1", "0,", "first"])
def test_devices_are_indices_or_all(sweep: Sweep, devices: str) -> None:
    code, _, err = sweep("--arch", "gfx950", "--devices", devices)
    assert (code, err) == (2, f"attn-tune: --devices must be all or indices such as 0,1, not {devices!r}\n")


def test_a_worker_that_cannot_start_is_one_line(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(*_: object, **__: object) -> None:
        raise WorkerStartError("a worker could not start: no such device")

    monkeypatch.setattr(importlib.import_module("attn_tune.cli.sweep"), "tune", tune)
    code, _, err = sweep("--arch", "gfx950", "--shapes", "shapes.yaml")
    assert (code, err) == (2, "attn-tune: a worker could not start: no such device\n")


def test_devices_of_this_machine_are_no_matter_of_a_cluster(sweep: Sweep) -> None:
    code, _, err = sweep("--arch", "gfx950", "--ray", "auto", "--devices", "0")
    assert code == 2
    assert err.startswith("attn-tune: --devices is for this machine")


@pytest.mark.parametrize("model", [False, True])
def test_a_dry_run_counts_and_does_nothing(sweep: Sweep, tmp_path: Path, model: bool) -> None:
    families = find_model("Qwen3.5-397B-A17B").families(2) if model else [AttentionFamily(4, 1, 64)]
    what = ("--model", "qwen3.5-397b-a17b", "--tp", "2") if model else ("--shapes", "shapes.yaml")
    arguments = ("--arch", "MI355X", "--evaluator", "compile", *what, "--configs", "6", "--dry-run")
    code, out, _ = sweep(*arguments, "--json")
    first = sum(len(first_round(family, get_arch("gfx950"), 3)) for family in families)
    assert code == 0
    assert json.loads(out) == {
        "arch": "gfx950",
        "shapes": len(families),
        "sizes": sum(len(size_grid(family)) for family in families),
        "compilations_at_most": first + 3 * len(families),
    }
    assert f"at most {first + 3 * len(families)} compilations" in sweep(*arguments)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["shapes.yaml"]
