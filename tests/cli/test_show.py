"""`attn-tune show`: the overview, the matrix of a family, and the same as JSON and as rows."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from sample_tables import CONFIG_2D, CONFIG_3D, FAMILY, family_rows, sample_table, write_sample
from typer.testing import CliRunner

from attn_tune.cli.matrix import make_matrix
from attn_tune.cli.show import show
from attn_tune.models import find_model
from attn_tune.problem import AttentionFamily
from attn_tune.store.load import load_table
from attn_tune.store.programs import RUN_TIME_PARAMETERS
from attn_tune.store.table import FamilyTable

QWEN = AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3")
OTHER = AttentionFamily(6, 2, 64, sliding_window=128, sinks=True)
LLAMA = find_model("Llama-3-8B").families()[0]

FILLING = {name: value for name, value in CONFIG_3D.items() if name != "NUM_SEGMENTS"} | {"NUM_PROGRAMS": 512}

app = typer.Typer()
app.command()(show)


def run(*arguments: str, columns: int = 100) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


def fails(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ValueError)
    return str(result.exception)


def mixed(rows: FamilyTable) -> FamilyTable:
    """The family with its paged_3d row measured."""
    return replace(
        rows, configs=rows.configs | {"paged_3d": (replace(rows.configs["paged_3d"][0], evidence="measured"),)}
    )


# gfx942 has no shipped table: what is shown is the user's alone.
@pytest.fixture
def path(user_tables: Path) -> Path:
    return write_sample(
        user_tables, family_rows(QWEN), mixed(family_rows(OTHER)), family_rows(LLAMA, "rule"), arch="gfx942"
    )


@pytest.mark.parametrize("columns", [100, 120, 200])
def test_the_overview_has_a_line_for_each_family(path: Path, columns: int) -> None:
    lines = run("--arch", "gfx942", columns=columns).splitlines()
    assert "3 families" in lines[0]
    assert str(path) in lines[1]
    assert all(len(line) <= columns for line in lines[2:])
    qwen, other, llama = (
        next(line.split() for line in lines if f" {heads} " in line) for heads in ("16/1/256", "6/2/64", "32/8/128")
    )
    assert qwen == ["Qwen3.5-397B-A17B", "TP2", "16/1/256", "16", "fp8", "513/513/-", "3~", "3", "1.25-1.50x"]
    assert other == ["-", "6/2/64", "16", "bf16", "sinks", "window", "128", "513/513/-", "1m", "2~", "3", "1.25-1.50x"]
    assert llama[:4] == ["Llama-3-8B", "TP1", "+1", "32/8/128"]
    text = " ".join(" ".join(lines).split())
    for note in ("m measured: timed on this arch", "~ modelled: compiled for this arch", "r rule: a rule's choice"):
        assert note in text


@pytest.mark.parametrize(
    "arguments", [("--model", "qwen3.5-397b-a17b"), ("--head-size", "256"), ("--kv-dtype", "fp8", "--no-sinks")]
)
def test_a_filter_shows_routes_and_configs(path: Path, arguments: tuple[str, ...]) -> None:
    lines = run("--arch", "gfx942", *arguments).splitlines()
    assert all(len(line) <= 100 for line in lines[2:])
    cells = [line.split() for line in lines]
    assert ["seqlen_q", "seqs", "<=", "512", ">", "512"] in cells
    assert ["1-8", "1-64", "2D", "A", "3D", "C·16"] in cells
    assert ["65+", "2D", "A", "2D", "A"] in cells
    assert ["9+", "1+", "2D", "B"] in cells  # where keys make no difference, there is one column
    assert ["A", "2D", "16", "64", "4", "2", "0", "1~", "10-20", "1.50x"] in cells
    assert ["C", "3D", "32", "32", "2", "2", "2", "·16", "1~", "11.5-99", "1.25x"] in cells
    assert "3 modelled rows, 3 kernels to compile" in "\n".join(lines)


def test_a_row_of_programs_shows_them(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(OTHER, split=FILLING), arch="gfx942")
    cells = [line.split() for line in run("--arch", "gfx942", "--sinks").splitlines()]
    assert ["1-8", "1-64", "2D", "A", "3D", "C/512"] in cells
    assert ["C", "3D", "32", "32", "2", "2", "2", "/512", "1~", "11.5-99", "1.25x"] in cells


def test_one_family_alone_is_shown_whole(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(OTHER), arch="gfx942")
    assert "C·16" in run("--arch", "gfx942")


def test_mixed_evidence_is_marked_in_each_cell(path: Path) -> None:
    cells = [line.split() for line in run("--arch", "gfx942", "--sinks").splitlines()]
    assert ["1-8", "1-64", "2D", "A", "~", "3D", "C·16", "m"] in cells


def test_several_families_say_how_to_choose_one(path: Path) -> None:
    out = run("--arch", "gfx942", "--page-size", "16", columns=200)
    assert out.count("max_seqlen_k") == 2 * 3
    assert "--num-query-heads 16|6|32" in out
    assert "--sinks or --no-sinks" in out


def test_all_archs_with_a_table_are_shown(user_tables: Path) -> None:
    write_sample(user_tables, arch="gfx942")
    write_sample(user_tables, arch="sm_100")
    out = run("--kv-layout", "shuffled")
    assert out.index("gfx942  304 compute units") < out.index("sm_100  148 compute units")


def test_a_stale_table_says_so(user_tables: Path) -> None:
    write_sample(user_tables, arch="gfx942", triton="3.0.1", kernels="00000000")
    out = run("--arch", "gfx942")
    assert "stale: built with Triton 3.0.1" in out
    assert "stale: built with kernels 00000000" in out


def test_rows_are_a_table_that_loads(path: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(run("--arch", "gfx942", "--rows", "--head-size", "256"))
    assert load_table(tmp_path / "rows.yaml") == sample_table(family_rows(QWEN), arch="gfx942")


def test_json_has_everything(path: Path) -> None:
    (table,) = json.loads(run("--arch", "gfx942", "--json"))["tables"]
    assert (table["arch"], table["path"], table["warnings"]) == ("gfx942", str(path), [])
    qwen = table["families"][0]
    assert qwen["models"] == ["Qwen3.5-397B-A17B TP2"]
    assert qwen["problem"]["head_size"] == 256
    assert (qwen["evidence"], qwen["kernels"]) == ("modelled", 3)
    assert qwen["routing"][0]["routes"] == {"1": "paged_2d", "513": "paged_3d"}
    row = qwen["configs"]["paged_2d"][0]
    assert row["when"] == {"max_seqlen_q": [1, 8], "num_seqs": [1, None], "max_seqlen_k": [1, None]}
    assert (row["config"], row["us"], row["evidence"]) == (CONFIG_2D, [10.0, 20.0], "modelled")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--arch", "gfx9999"), r"no table for gfx9999"),
        (("--arch", "gfx942", "--model", "Qwen3"), "nearest: "),
        (("--arch", "gfx942", "--model", "Mistral-7B"), "no table of gfx942 has such a family"),
        (("--arch", "gfx942", "--tp", "2"), "--tp needs --model"),
    ],
)
def test_what_is_not_there_is_said(path: Path, arguments: tuple[str, ...], reason: str) -> None:
    assert reason in fails(*arguments)


@pytest.mark.parametrize("family", [FAMILY, OTHER])
def test_every_cell_of_a_matrix_is_the_tables_answer(family: AttentionFamily) -> None:
    rows = family_rows(family, split=FILLING if family is QWEN else None)
    matrix = make_matrix(rows)
    checked = 0
    for plane in matrix.planes:
        for line, (column, position) in itertools.product(plane.lines, zip(plane.columns, itertools.count())):
            cell = line.cells[position]
            for sizes in itertools.product(ends(line.num_seqs), ends(plane.max_seqlen_q), ends(column)):
                if cell is None:
                    assert sizes[1] > column[1]
                    continue
                kernel, row = rows.find(sizes)
                segments = row.config.get("NUM_SEGMENTS", 0)
                split = f"·{segments}" if segments > 1 else "" if segments else f"/{row.config['NUM_PROGRAMS']}"
                assert (cell.kernel, cell.split) == (kernel, split)
                key = kernel, tuple(sorted(item for item in row.config.items() if item[0] not in RUN_TIME_PARAMETERS))
                assert matrix.letters[key] == cell.letter
                checked += 1
    assert checked >= 4 * 8


def ends(interval: tuple[int, float]) -> tuple[int, int]:
    low, high = interval
    return low, int(min(high, 1 << 20))


def test_sizes_with_more_queries_than_keys_are_left_out() -> None:
    rows = family_rows()
    routing = (replace(rows.routing[0], max_seqlen_q=(1, 600)), replace(rows.routing[1], max_seqlen_q=(1, 600)))
    routing += (replace(rows.routing[2], max_seqlen_q=(601, rows.routing[2].max_seqlen_q[1])),)
    configs = {
        kernel: tuple(
            replace(
                row,
                when=replace(
                    row.when,
                    max_seqlen_q=(1, 600) if row.when.max_seqlen_q[0] == 1 else (601, row.when.max_seqlen_q[1]),
                ),
            )
            for row in own
        )
        for kernel, own in rows.configs.items()
    }
    matrix = make_matrix(replace(rows, routing=routing, configs=configs))
    assert [[cell is None for cell in line.cells] for line in matrix.planes[-1].lines] == [[True, False]]
