from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from attn_tune.arch import get_arch
from attn_tune.cli.inspect import inspect, parse_overrides

SHAPE = ["--num-query-heads", "16", "--num-kv-heads", "1", "--head-size", "64", "--kv-dtype", "fp8_e4m3"]
SIZES = ["--num-seqs", "20", "--max-seqlen-q", "4", "--max-seqlen-k", "70000"]
CONFIG = ["--route", "paged_3d", "--config", "BLOCK_M=64,TILE_SIZE=32", "--config", "NUM_SEGMENTS=8,num_warps=4"]
MATRIX = {"gfx950": "v_mfma_", "gfx1250": "v_wmma_", "sm_90": "HGMMA"}
TRITON = tuple(int(part) for part in version("triton").split(".")[:2])
OLD = pytest.mark.skipif(TRITON < (3, 7), reason="Triton 3.6 does not compile this for gfx1250")
ARCHS = ["gfx950", pytest.param("gfx1250", marks=OLD), "sm_90"]

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(inspect)


@pytest.fixture(scope="module", autouse=True)
def clean_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compile cache of our own, no user tables, and a terminal of 100 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("ATTN_TUNE_CONFIG_DIR", str(tmp_path_factory.mktemp("tables")))
        patch.setenv("COLUMNS", "100")
        yield


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*SHAPE, *SIZES, *arguments])


def as_json(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


@pytest.mark.parametrize("arch", ARCHS)
def test_json_has_resources_of_every_launch_and_the_terms(arch: str) -> None:
    found = as_json("--arch", arch, *CONFIG)
    assert found["arch"] == arch
    assert (found["route"], found["overridden"]) == ("paged_3d", True)
    assert found["config"].items() >= {"BLOCK_M": 64, "TILE_SIZE": 32, "NUM_SEGMENTS": 8, "num_warps": 4}.items()
    assert [launch["kernel"] for launch in found["launches"]] == ["paged_attention", "reduce_segments"]
    assert [launch["grid"] for launch in found["launches"]] == [[20, 8, 1], [20 * 4 * 16, 1, 1]]
    attention = found["launches"][0]
    resources = attention["resources"]
    assert 0 < resources["registers"] <= get_arch(arch).max_registers
    assert attention["programs_per_unit"] == found["prediction"]["programs_per_unit"] >= 1
    assert all(name.startswith(MATRIX[arch]) for name in resources["loop"]["matrix"])
    terms = found["prediction"]["terms_us"]
    assert {"launch", "loop", "memory", "prologue", "reduce"} <= terms.keys()
    total = terms["launch"] + terms["prologue"] + max(terms["loop"], terms["memory"]) + terms["reduce"]
    assert found["prediction"]["us"] == pytest.approx(total)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_human_view_fits_and_says_the_same(arch: str) -> None:
    result = invoke("--arch", arch, *CONFIG)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    attention, reduce = as_json("--arch", arch, *CONFIG)["launches"]
    for launch in (attention, reduce):
        assert launch["kernel"] in result.stdout
        assert f"{launch['resources']['registers']} of {get_arch(arch).max_registers}" in result.stdout
        assert f"{launch['resources']['lds_bytes']:,} of" in result.stdout
    for name, count in attention["resources"]["loop"]["matrix"].items():
        assert f"{count} {name}" in result.stdout
    assert "predicted, not measured" in result.stdout
    assert "not the table's answer" in result.stdout


def test_without_overrides_the_answer_is_inspected_and_explained() -> None:
    found = as_json("--arch", "gfx950")
    assert not found["overridden"]
    assert (found["route"], found["config"]) == (found["answer"]["route"], found["answer"]["config"])
    assert found["answer"]["source"] in ("exact", "nearest", "rule")
    text = invoke("--arch", "gfx950").stdout
    assert f"{found['answer']['source']}: " in text
    assert "not the table's answer" not in text


@pytest.mark.parametrize(("route", "splits"), [("paged_2d", False), ("paged_3d", True)])
def test_another_route_gets_segments_of_its_own(route: str, splits: bool) -> None:
    found = as_json("--arch", "gfx950", "--route", route)
    assert found["route"] == route
    assert (found["config"]["NUM_SEGMENTS"] > 1) == splits
    assert len(found["launches"]) == 1 + splits


def test_a_config_that_fits_no_unit_is_said_to() -> None:
    config = "BLOCK_M=16,TILE_SIZE=32,num_stages=5,num_warps=4"  # four buffers of 16 KiB and more
    shape = ("--head-size", "256", "--kv-dtype", "bf16")
    arguments = ("--arch", "gfx942", *shape, "--route", "paged_2d", "--config", config)
    found = as_json(*arguments)
    assert (found["prediction"]["us"], found["prediction"]["programs_per_unit"]) == (None, 0)
    text = invoke(*arguments).stdout
    assert "cannot be launched" in text
    assert "none fits" in text


def test_dump_lists_what_it_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    found = as_json("--arch", "gfx950", *CONFIG, "--dump", str(folder))
    assert sorted(found["files"]) == sorted(map(str, folder.iterdir()))
    problem = json.loads((folder / "problem.json").read_text())
    assert problem["config"] == found["config"]
    assert [json.loads((folder / name).read_text())["grid"] for name in problem["launches"]] == [
        launch["grid"] for launch in found["launches"]
    ]


def test_the_human_view_names_the_files(tmp_path: Path) -> None:
    result = invoke("--arch", "gfx950", *CONFIG, "--dump", str(tmp_path / "dump"))
    assert "7 files in" in result.stdout
    assert "0-paged_attention.hsaco" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "gfx000"], "gfx000"),
        (["--arch", "gfx950", "--route", "paged_9d"], "paged_9d"),
        (["--arch", "gfx950", "--config", "BLOCK_N=64"], "BLOCK_N"),
        (["--arch", "gfx950", "--config", "num_warps=3"], "num_warps"),
        (["--arch", "gfx950", "--config", "TILE_SIZE=48"], "does not compile"),
        (["--arch", "gfx950", "--tp", "2"], "--tp needs --model"),
        (["--arch", "gfx950", "--softcap", "--q-dtype", "fp64"], "q_dtype"),
    ],
)
def test_a_mistake_is_a_value_error_that_names_it(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_an_ambiguous_model_says_how_to_choose() -> None:
    result = CliRunner().invoke(app, ["--arch", "gfx950", "--model", "Llama-3-70B", *SIZES])
    assert isinstance(result.exception, ValueError)
    assert "--tp" in str(result.exception)
    assert "--kv-dtype bf16|fp8_e4m3" in str(result.exception)


def test_a_dump_into_a_full_folder_fails_before_compiling(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    result = invoke("--arch", "gfx950", "--config", "TILE_SIZE=48", "--dump", str(tmp_path))
    assert isinstance(result.exception, FileExistsError)
    assert str(tmp_path) in str(result.exception)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], {}),
        (["BLOCK_M=64"], {"BLOCK_M": 64}),
        (["BLOCK_M=64,num_warps=2", "num_stages=1"], {"BLOCK_M": 64, "num_warps": 2, "num_stages": 1}),
        (["waves_per_eu = 0"], {"waves_per_eu": 0}),
    ],
)
def test_overrides_are_read(texts: list[str], expected: dict[str, int]) -> None:
    assert parse_overrides(texts) == expected


@pytest.mark.parametrize("text", ["BLOCK_M", "BLOCK_M=", "BLOCK_M=big", "BLOCK_M=64,", "=3x"])
def test_a_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--config: .* is not KEY=INTEGER"):
        parse_overrides([text])
