from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.check import check_table
from attn_tune.store.load import load_table
from attn_tune.store.table import Box, ConfigRow, FamilyTable, RoutingRow, Table, TableError


def messages(path: Path, text: str) -> list[str]:
    """What a strict load says, and that it is the first thing the check says."""
    path.write_text(text)
    with pytest.raises(TableError) as caught:
        load_table(path)
    return [str(caught.value).removeprefix(f"{path}:")]


def test_a_whole_table_has_no_faults(table: Table) -> None:
    assert check_table(table) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            ("num_seqs: [65, .inf]", "num_seqs: [66, .inf]"),
            "5: routing: no row for {max_seqlen_q: [1, 1], num_seqs: [65, 65], max_seqlen_k: [1, .inf]}",
        ),
        (
            (
                "max_seqlen_q: [2, .inf], num_seqs: [1, .inf], routes",
                "max_seqlen_q: [2, 9], num_seqs: [1, .inf], routes",
            ),
            "5: routing: no row for {max_seqlen_q: [10, .inf], num_seqs: [1, .inf], max_seqlen_k: [1, .inf]}",
        ),
        (
            ("routes: {1: paged_2d, 513", "routes: {9: paged_2d, 513"),
            "5: routing: no row for {max_seqlen_q: [1, 1], num_seqs: [1, 64], max_seqlen_k: [1, 8]}",
        ),
        (
            ("max_seqlen_k: [513, .inf]", "max_seqlen_k: [514, 1000]"),
            "5: configs.paged_3d: no row for {max_seqlen_q: [1, 1], num_seqs: [1, 64], max_seqlen_k: [513, 513]}",
        ),
        (
            ("513: paged_3d", "513: gluon"),
            "5: configs.gluon: no row for {max_seqlen_q: [1, 1], num_seqs: [1, 64], max_seqlen_k: [513, .inf]}",
        ),
        (("num_seqs: [65, .inf]", "num_seqs: [64, .inf]"), "8: routing: rows on lines 7 and 8 overlap"),
        (
            (
                "      paged_3d:\n",
                "        - when: {max_seqlen_q: [5, 5], num_seqs: [7, 9], max_seqlen_k: [3, 3]}\n"
                "          config: {BLOCK_M: 16}\n          evidence: rule\n      paged_3d:\n",
            ),
            "17: configs.paged_2d: rows on lines 12 and 17 overlap",
        ),
    ],
)
def test_holes_and_overlaps_are_refused(tmp_path: Path, text: str, edit: tuple[str, str], message: str) -> None:
    assert edit[0] in text
    assert messages(tmp_path / "t.yaml", text.replace(*edit, 1))[0].startswith(message)


def test_neighbouring_holes_are_one_box(table: Table) -> None:
    family = replace(table.families[0], configs={"paged_2d": table.families[0].configs["paged_2d"]})
    faults = check_table(replace(table, families=(family,)))
    assert [fault.field for fault in faults] == ["configs.paged_3d"]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"NUM_SEGMENTS": 0}, "NUM_SEGMENTS"),
        ({"NUM_PROGRAMS": 0, "BLOCK_M": 16, "TILE_SIZE": 32}, "NUM_PROGRAMS must be 1 or more"),
        ({"NUM_PROGRAMS": 264, "NUM_SEGMENTS": 2, "BLOCK_M": 16, "TILE_SIZE": 32}, "exclude each other"),
        ({"NUM_PROGRAMS": 264, "TILE_SIZE": 32}, "needs BLOCK_M"),
        ({"NUM_PROGRAMS": 264, "BLOCK_M": 16}, "needs TILE_SIZE"),
        ({"num_stages": 0}, "num_stages"),
        ({"num_warps": 3}, "num_warps"),
        ({"num_warps": 0}, "num_warps"),
        ({"BLOCK_M": 48}, "BLOCK_M"),
        ({"BLOCK_M": 4}, "BLOCK_M"),
        ({"TILE_SIZE": 0}, "TILE_SIZE"),
    ],
)
def test_a_config_that_cannot_be_launched_is_a_fault(table: Table, config: dict[str, int], word: str) -> None:
    family = table.families[1]
    rows = {"paged_2d": (replace(family.configs["paged_2d"][0], config=config),)}
    faults = check_table(replace(table, families=(replace(family, configs=rows),)))
    assert [word in fault.reason for fault in faults] == [True]


def test_the_compilers_default_occupancy_and_unknown_parameters_pass(table: Table) -> None:
    family = table.families[1]
    config = {"waves_per_eu": 0, "PAGES_PER_TILE": 3}
    rows = {"paged_2d": (replace(family.configs["paged_2d"][0], config=config),)}
    assert check_table(replace(table, families=(replace(family, configs=rows),))) == []


LIMIT = 4  # random boxes have corners up to here, so a point one beyond stands for all larger sizes


def split_at_random(random_: random.Random, box: list[tuple[int, float]], depth: int) -> list[list[tuple[int, float]]]:
    """A partition of a box by random cuts."""
    axis = random_.randrange(len(box))
    low, high = box[axis]
    if not depth or low > LIMIT - 1 or low == high:
        return [box]
    cut = random_.randint(low, int(min(high, LIMIT)) - 1)
    left, right = list(box), list(box)
    left[axis], right[axis] = (low, cut), (cut + 1, high)
    return split_at_random(random_, left, depth - 1) + split_at_random(random_, right, depth - 1)


def disturbed(random_: random.Random, interval: tuple[int, float]) -> tuple[int, float]:
    low, high = interval
    low = max(1, low + random_.choice((-1, 0, 0, 1)))
    return (low, max(low, high + random_.choice((-1, 0, 0, 1))))


@pytest.mark.parametrize("seed", range(200))
def test_check_agrees_with_counting_the_rows_of_every_size(seed: int) -> None:
    random_ = random.Random(seed)
    everything: tuple[int, float] = (1, math.inf)
    planes = split_at_random(random_, [everything, everything], 2)
    boxes = {kernel: split_at_random(random_, [everything] * 3, 2) for kernel in ("a", "b")}
    if seed % 2:
        victims = random_.choice((planes, boxes["a"], boxes["b"]))
        victim = random_.choice(victims)
        axis = random_.randrange(len(victim))
        victim[axis] = disturbed(random_, victim[axis])
    routing = [
        RoutingRow(q, seqs, {1: "a", random_.randint(2, LIMIT): "b"}, line=i) for i, (q, seqs) in enumerate(planes)
    ]
    configs = {
        k: tuple(ConfigRow(Box(*b), {}, "rule", line=i) for i, b in enumerate(rows)) for k, rows in boxes.items()
    }
    family = FamilyTable(AttentionFamily(1, 1, 64), tuple(routing), configs)

    def is_right(sizes: tuple[int, int, int]) -> bool:
        found = [row for row in routing if Box(row.max_seqlen_q, row.num_seqs).contains(sizes)]
        counts = {kernel: sum(row.when.contains(sizes) for row in rows) for kernel, rows in configs.items()}
        if len(found) != 1 or max(counts.values()) > 1:
            return False
        return counts[found[0].routes[max(start for start in found[0].routes if start <= sizes[2])]] == 1

    points = range(1, LIMIT + 4)
    whole = all(is_right(sizes) for sizes in itertools.product(points, points, points))
    faults = check_table(Table("gfx950", 256, 64, {}, (family,)))
    assert (not faults) == whole, faults
