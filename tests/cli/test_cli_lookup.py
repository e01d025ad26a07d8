"""`attn-tune lookup`: the answer and its chain, for a shape or for a model's shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from sample_tables import CONFIG_3D, family_rows, write_sample
from typer.testing import CliRunner

from attn_tune.cli.lookup import lookup
from attn_tune.models import find_model

SIZES = ("--num-seqs", "20", "--max-seqlen-q", "4", "--max-seqlen-k", "70000")
MINIMAX = find_model("MiniMax-M3").families(4)

app = typer.Typer()
app.command()(lookup)


def run(*arguments: str, arch: str = "gfx942") -> str:
    result = CliRunner().invoke(app, ["--arch", arch, *SIZES, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def answers(*arguments: str, arch: str = "gfx942") -> list[dict[str, Any]]:
    return list(json.loads(run(*arguments, "--json", arch=arch))["answers"])


def fields(out: str) -> dict[str, str]:
    """The lines of an answer by their label."""
    lines = [line.strip().partition(" ") for line in out.splitlines() if line.startswith("  ")]
    return {label: text.strip() for label, _, text in lines}


@pytest.fixture
def path(user_tables: Path) -> Path:
    return write_sample(user_tables, *map(family_rows, MINIMAX), arch="gfx942")


def test_the_answer_and_its_chain_are_printed(path: Path) -> None:
    out = run("--model", "MiniMax-M3", "--tp", "4", "--kv-dtype", "bf16", "--page-size", "16")
    found = fields(out)
    assert "20 x 4 @ 70000, 16/1/128 page 16" in out
    assert "MiniMax-M3 TP4" in out
    assert found["route"] == "paged_3d"
    assert found["config"] == ", ".join(f"{name} {value}" for name, value in CONFIG_3D.items())
    assert found["source"].startswith("exact")
    assert found["evidence"].startswith("modelled")
    assert found["us"].startswith("99 predicted")
    assert found["chain"] == "arch gfx942"
    assert str(path) in out
    assert "routing -> paged_3d" in out
    assert "row {max_seqlen_q: [1, 8], num_seqs: [1, 64], max_seqlen_k: [513, .inf]}" in out


def test_a_shape_can_be_spelled_out(path: Path) -> None:
    heads = ("--num-query-heads", "16", "--num-kv-heads", "1", "--head-size", "128")
    (answer,) = answers(*heads, "--page-size", "128", "--kv-dtype", "fp8", "--kv-scales", "per_token_head")
    assert (answer["route"], answer["config"], answer["source"]) == ("paged_3d", CONFIG_3D, "exact")
    assert answer["problem"]["page_size"] == 128
    assert (answer["us"], answer["evidence"], answer["stale"]) == (99.0, "modelled", False)
    assert answer["chain"][0] == "arch gfx942"


def test_a_model_gets_an_answer_for_each_of_its_families(path: Path) -> None:
    out = run("--model", "MiniMax-M3", "--tp", "4")
    assert out.count("route ") == len(MINIMAX) == 4
    assert "choose with --page-size 16|128, --kv-dtype bf16|fp8_e4m3" in out
    assert [answer["problem"]["kv_scales"] for answer in answers("--model", "minimax-m3", "--tp", "4")] == [
        family.kv_scales for family in MINIMAX
    ]


def test_tensor_parallel_sizes_are_chosen_with_tp(path: Path) -> None:
    out = run("--model", "MiniMax-M3", "--page-size", "16", "--kv-dtype", "bf16")
    assert "choose with --tp 4|8" in out
    assert "--num-query-heads" not in out


def test_a_nearest_answer_says_whose_it_is(path: Path) -> None:
    out = run("--num-query-heads", "32", "--num-kv-heads", "2", "--head-size", "128", "--kv-scales", "none")
    assert fields(out)["source"].startswith("nearest")
    assert fields(out)["evidence"].startswith("modelled for that family")
    assert "num_seqs counts 2 times" in out


def test_an_unknown_arch_gets_a_rule(path: Path) -> None:
    found = fields(run("--model", "Ministral", arch="gfx9999"))
    assert found["source"].startswith("rule")
    assert "us" not in found


def test_a_mixed_batch_shows_how_it_counts(path: Path) -> None:
    out = run("--model", "MiniMax-M3", "--tp", "4", "--page-size", "16", "--kv-dtype", "bf16", "--num-tokens", "30")
    assert "30 tokens: looked up like 8 sequences of 4" in out


def test_a_corrupt_table_is_told_and_passed_over(path: Path) -> None:
    path.write_text("schema: 1\n")
    (answer,) = answers("--model", "Ministral")
    assert answer["source"] == "rule"
    assert any("gfx942.yaml:1" in step for step in answer["chain"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--num-query-heads is missing (or give --model)"),
        (("--num-query-heads", "16", "--num-kv-heads", "1"), "--head-size is missing"),
        (("--num-query-heads", "16", "--num-kv-heads", "3", "--head-size", "128"), "multiple of num_kv_heads"),
        (("--model", "Llama"), "nearest: "),
        (("--model", "MiniMax-M3", "--head-size", "64"), "no attention layer of MiniMax-M3 has --head-size 64"),
        (("--tp", "2"), "--tp needs --model"),
        (("--model", "Ministral", "--num-tokens", "81"), "num_tokens (81) exceeds"),
    ],
)
def test_a_mistake_is_named(path: Path, arguments: tuple[str, ...], reason: str) -> None:
    result = CliRunner().invoke(app, ["--arch", "gfx942", *SIZES, *arguments])
    assert isinstance(result.exception, ValueError)
    assert reason in str(result.exception)
