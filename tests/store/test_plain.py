"""What the writer writes is read without a YAML parser, and exactly as the parser reads it."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attn_tune.store.load import load_table, open_table
from attn_tune.store.plain import plain_family, plain_header, split_families
from attn_tune.store.table import Box, ConfigRow, FamilyTable, RoutingRow, Table, dump_table


def random_rows(rng: random.Random, table: FamilyTable) -> FamilyTable:
    """Rows with every mixture of the fields that may be left out; they need not cover anything."""

    def interval() -> tuple[int, float]:
        low = rng.randint(1, 1 << rng.randint(0, 20))
        return low, rng.choice((math.inf, low, low + rng.randint(0, 1000)))

    def row() -> ConfigRow:
        evidence = rng.choice(("measured", "modelled", "rule"))
        low = 10 ** rng.uniform(-3, 7)
        numbers = {
            name: 10 ** rng.uniform(-8, 2) if rng.random() < 0.5 else None
            for name in ("regret", "best_rule", "spread", "error")
        }
        us = None if evidence == "rule" and rng.random() < 0.5 else (low, low * rng.choice((1, 1, 3.3)))
        names = rng.sample(("BLOCK_M", "TILE_SIZE", "num_warps", "KEYS_FIRST"), rng.randint(1, 4))
        config = {name: 1 << rng.randint(0, 12) for name in names}
        box = Box(interval(), interval(), interval())
        return ConfigRow(box, config, evidence, us, **numbers, samples=rng.choice((0, 30)))

    routes = {start: rng.choice(("paged_2d", "paged_3d")) for start in rng.sample(range(1, 10**6), rng.randint(1, 3))}
    routing = tuple(RoutingRow(interval(), interval(), routes) for _ in range(rng.randint(1, 4)))
    configs = {kernel: (row(), row()) for kernel in ("paged_2d", "paged_3d", "k3")}
    tuned_up_to = rng.choice((None, (rng.randint(1, 512), rng.randint(1, 10**4), rng.randint(1, 10**6))))
    return replace(table, routing=routing, configs=configs, tuned_up_to=tuned_up_to)


def read(text: str) -> list[FamilyTable | None]:
    split = split_families(text)
    assert split is not None
    return [
        plain_family(family, text[start:end], text.count("\n", 0, start)) for family, (start, end) in split[1].items()
    ]


def sorted_rows(table: FamilyTable) -> FamilyTable:
    """In the writer's order."""
    routing = tuple(sorted(table.routing, key=lambda row: (row.max_seqlen_q, row.num_seqs)))
    configs = {kernel: tuple(sorted(rows, key=lambda row: row.when)) for kernel, rows in table.configs.items()}
    return replace(table, routing=routing, configs=configs)


def test_every_row_that_is_written_is_read(table: Table) -> None:
    rng = random.Random(1)
    for _ in range(200):
        families = tuple(sorted_rows(random_rows(rng, family)) for family in table.families)
        assert read(dump_table(replace(table, families=families))) == list(families)


def test_header_and_lines_are_those_of_the_parser(table: Table, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(dump_table(table))
    strict = load_table(tmp_path / "t.yaml")
    split = split_families((tmp_path / "t.yaml").read_text())
    assert split is not None
    assert plain_header(split[0]) == replace(strict, families=())
    for family, rows in zip(read((tmp_path / "t.yaml").read_text()), strict.families, strict=True):
        assert family == rows
        assert family.line == rows.line
        assert [row.line for row in family.routing] == [row.line for row in rows.routing]
        for kernel, own in rows.configs.items():
            assert [row.line for row in family.configs[kernel]] == [row.line for row in own]


@pytest.mark.parametrize(
    "edit",
    [
        ("num_seqs: [1, 64]", "num_seqs: [64, 1]"),
        ("num_seqs: [1, 64]", "num_seqs: [0, 64]"),
        ("num_seqs: [1, 64]", "num_seqs: [1, 1_0]"),
        ("513: paged_3d", "1: paged_3d"),
        ("513: paged_3d", "513: on"),
        ("513: paged_3d", "0513: paged_3d"),
        ("TILE_SIZE: 32", "TILE_SIZE: 032"),
        ("TILE_SIZE: 32", "TILE_SIZE: 32, TILE_SIZE: 32"),
        ("TILE_SIZE: 32", "TILE_SIZE: 32}num_warps: 2"),
        ("us: [12.3, 131.6]", "us: [131.6, 12.3]"),
        ("us: [12.3, 131.6]", "us: 0"),
        ("us: [12.3, 131.6]", "us: 1e-3"),
        ("          us: [12.3, 131.6]\n", ""),
        ("evidence: modelled", "evidence: guess"),
        ("regret: 1.0\n", "regret: 1.0\n          other: 1\n"),
        ("regret: 1.0\n", "regret: 1.0 # by hand\n"),
        ("      paged_2d:\n", "      paged_3d:\n"),
        ("      paged_2d:\n", "      no-kernel:\n"),
    ],
)
def test_what_the_writer_would_not_write_is_left_to_the_parser(text: str, edit: tuple[str, str]) -> None:
    assert edit[0] in text
    first, second = read(text.replace(*edit, 1))
    assert first is None
    assert second is not None


@pytest.mark.parametrize(
    "edit",
    [
        ("schema: 1", "schema: 2"),
        ("kernels: 5f3a9c0e", "kernels: 12345678"),
        ("triton: 3.9.0", "triton: 3.9"),
        ("triton: 3.9.0", 'triton: "3.9.0"'),
        ("triton: 3.9.0", "attn_tune: 3.9.0"),
        ("wave_size: 64", "wave_size: 064"),
        ("arch: {name: gfx950", "arch: {name: on"),
        ("built_with:", "# why\n# not\nbuilt_with:"),
    ],
)
def test_a_header_that_the_writer_would_not_write_is_left_to_the_parser(text: str, edit: tuple[str, str]) -> None:
    assert edit[0] in text
    split = split_families(text.replace(*edit, 1))
    assert split is not None
    assert plain_header(split[0]) is None


def test_a_plain_table_is_read_without_the_parser(table: Table, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(dump_table(table))
    code = (
        "import sys; from attn_tune.store.load import open_table; table = open_table(sys.argv[1]);"
        "rows = [table.family(family) for family in table.families]; sys.exit('yaml' in sys.modules or len(rows) != 2)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "t.yaml"], check=True)
    assert len(open_table(tmp_path / "t.yaml").families) == 2
