"""`attn-tune check`: every fault with its place, doubts as warnings, and counts where all is well."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import trap_kernels
import typer
from sample_tables import CONFIG_2D, CONFIG_3D, FAMILY, family_rows, write_sample
from tiny_sweeps import shared_caches
from typer.testing import CliRunner

from attn_tune.cli.check import check
from attn_tune.kernels import register, registry
from attn_tune.problem import AttentionFamily
from attn_tune.store.table import Box, ConfigRow, RoutingRow

app = typer.Typer()
app.command()(check)


def run(*arguments: str | Path) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


def edited(path: Path, *edits: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)
    return path


def test_a_sound_table_is_ok_with_counts(user_tables: Path) -> None:
    other = AttentionFamily(**vars(FAMILY) | {"page_size": 64})
    path = write_sample(user_tables, family_rows(), family_rows(other, "measured"))
    assert run(path) == (0, [f"{path}: ok, 2 families, 6 config rows (3 measured, 3 modelled)"])


def test_every_fault_is_printed_with_its_place(user_tables: Path) -> None:
    path = edited(
        write_sample(user_tables),
        ("{1: paged_2d, 513: paged_3d}", "{0: paged_2d}"),
        ("evidence: modelled", "evidence: guessed"),
        ("us: [11.5, 99.0]", "us: 1e-3"),
    )
    code, lines = run(path)
    text = path.read_text().splitlines()
    assert code == 1
    places = [re.fullmatch(rf"{re.escape(str(path))}:(\d+): (families\S+): .+", line) for line in lines[:-1]]
    assert all(places)
    found = {match[2]: text[int(match[1]) - 1] for match in places if match}
    assert len(found) == 3
    assert "0: paged_2d" in found["families[0].routing[0].routes.0"]
    assert "guessed" in found["families[0].configs.paged_2d[0].evidence"]
    assert "1e-3" in found["families[0].configs.paged_3d[0].us"]
    assert lines[-1] == f"{path}: 3 faults"


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (("num_seqs: [1, 64], max_seqlen_k", "num_seqs: [1, 63], max_seqlen_k"), r"no row for .*num_seqs: \[64, 64\]"),
        (("num_seqs: [65, .inf], routes", "num_seqs: [64, .inf], routes"), r"routing: rows on lines 9 and 10 overlap"),
        (("TILE_SIZE: 64", "TILE_SIZE: 48"), "TILE_SIZE must be a power of two"),
        (("TILE_SIZE: 64", "TILE_SIZE: 8"), "TILE_SIZE must be at least 16"),
        (("TILE_SIZE: 64", "TILE_SIZE: 1024"), "bytes of LDS; gfx950 takes 147456 safely"),
        (("TILE_SIZE: 64, ", ""), "config has no TILE_SIZE"),
        (("num_warps: 4", "num_warps: 32"), "num_warps 32 is 2048 threads"),
        (("NUM_SEGMENTS: 16, ", ""), "config has no NUM_SEGMENTS"),
        (("kv_dtype: fp8_e4m3", "kv_dtype: fp16"), "q_dtype bf16 and kv_dtype fp16 must be equal"),
        (("schema: 1", "schema: 9"), "schema 9 is not supported"),
        (("wave_size: 64", "wave_size: 32"), "gfx950 has waves of 64"),
        (("name: gfx950", "name: gfx942"), "is gfx942, but the file is named after gfx950"),
    ],
)
def test_a_fault_is_found(user_tables: Path, edit: tuple[str, str], fault: str) -> None:
    path = edited(write_sample(user_tables), edit)
    code, lines = run(path)
    assert code == 1
    assert all(line.startswith(str(path)) for line in lines)
    assert any(re.search(fault, line) for line in lines), lines


@pytest.fixture
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in shared_caches(tmp_path_factory).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_caches")
@pytest.mark.parametrize(("trap", "fault"), [("ok", ""), ("compile_error", "compile_error .*this size is not for me")])
def test_compiling_finds_what_no_estimate_shows(user_tables: Path, trap: str, fault: str) -> None:
    config = {"BLOCK_M": 16, "TILE_SIZE": 32, "num_warps": 1, "num_stages": 1, "TRAP": 0}
    register(trap_kernels.TrapRoute((trap,)))
    try:
        path = write_sample(user_tables, replace(family_rows(trap_kernels.FAMILY), **only("trap", config)))
        assert run(path)[0] == 0
        code, lines = run(path, "--compile")
    finally:
        registry._KERNELS.pop("trap")
    assert code == (1 if fault else 0)
    if fault:
        (number,) = [number for number, text in enumerate(path.read_text().splitlines(), 1) if "when:" in text]
        expected = rf"{path}:{number}: configs\.trap: Triton {version('triton')}: {fault}.*"
        assert [line for line in lines if re.fullmatch(expected, line)]


def only(kernel: str, config: dict[str, int]) -> dict[str, Any]:
    """Routing and configs of a family that one row of a kernel answers."""
    everything = (1, math.inf)
    row = ConfigRow(Box(everything, everything), config, "rule")
    return {"routing": (RoutingRow(everything, everything, {1: kernel}),), "configs": {kernel: (row,)}}


def test_fp8_query_terms_need_an_arch_that_has_them(user_tables: Path) -> None:
    rows = family_rows(split=CONFIG_3D | {"QUERY_TERMS": 2})
    assert run(write_sample(user_tables, rows))[0] == 0
    code, lines = run(write_sample(user_tables, rows, arch="gfx942"))
    assert code == 1
    assert "QUERY_TERMS" in lines[0]


def test_files_that_cannot_be_read_are_faults(user_tables: Path) -> None:
    good = write_sample(user_tables)
    empty = user_tables / "empty.yaml"
    empty.write_text("")
    code, lines = run(user_tables / "none.yaml", empty, good)
    assert code == 1
    assert lines[0] == f"{user_tables / 'none.yaml'}: there is no such file"
    assert lines[2] == f"{empty}: the file is empty"
    assert lines[4].startswith(f"{good}: ok")


@pytest.mark.parametrize(
    ("edits", "warning"),
    [
        ([], "stale: built with Triton 3.0.1"),
        ([("triton: 3.0.1, ", "")], "built_with does not say which triton"),
        ([("compute_units: 256", "compute_units: 512")], "gfx950 has 256 compute units, not 512"),
        ([("paged_3d", "their_kernel")] * 2, "kernel their_kernel is not registered"),
        ([("name: gfx950", "name: gfx1201")], "arch gfx1201 is unknown"),
    ],
)
def test_doubts_are_warnings(tmp_path: Path, edits: list[tuple[str, str]], warning: str) -> None:
    path = edited(write_sample(tmp_path, triton="3.0.1"), *edits).rename(tmp_path / "mine.yaml")
    code, lines = run(path)
    assert code == 0
    assert any(line.startswith(f"{path}: warning: {warning}") for line in lines), lines
    assert lines[-1].startswith(f"{path}: ok")


def test_older_kernels_are_a_warning(user_tables: Path) -> None:
    code, lines = run(write_sample(user_tables, kernels="00000000"))
    assert code == 0
    assert "built with kernels 00000000" in lines[0]


def test_the_users_and_the_shipped_tables_are_checked_by_default(user_tables: Path) -> None:
    path = write_sample(user_tables, family_rows(small=CONFIG_2D | {"TILE_SIZE": 48}), arch="sm_100")
    code, lines = run()
    assert code == 1
    assert lines[0].startswith(f"{path}:")


def test_json_has_the_same(user_tables: Path) -> None:
    bad = edited(write_sample(user_tables), ("TILE_SIZE: 64", "TILE_SIZE: 48"))
    good = write_sample(user_tables, arch="gfx942", triton="3.0.1")
    code, lines = run("--json", bad, good)
    out: dict[str, Any] = json.loads("\n".join(lines))
    assert (code, out["ok"]) == (1, False)
    first, second = out["files"]
    assert (first["path"], first["ok"]) == (str(bad), False)
    assert first["faults"][0]["field"] == "configs.paged_2d"
    assert "TILE_SIZE" in bad.read_text().splitlines()[first["faults"][0]["line"]]
    assert (second["ok"], second["families"], second["config_rows"]) == (True, 1, {"modelled": 3})
    assert "3.0.1" in second["warnings"][0]
