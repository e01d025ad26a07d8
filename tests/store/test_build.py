from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.build import Candidate, build_family
from attn_tune.store.check import check_table
from attn_tune.store.load import load_table
from attn_tune.store.table import FamilyTable, Table, write_table

FAMILY = AttentionFamily(8, 1, 128)
Cells = dict[tuple[int, int, int], list[Candidate]]


def two_d(us: float, evidence: str = "modelled", **fields: Any) -> Candidate:
    return Candidate("paged_2d", {"BLOCK_M": 16, "num_warps": 2}, us, evidence, **fields)


def split(us: float, segments: int = 16, warps: int = 2, evidence: str = "modelled", **fields: Any) -> Candidate:
    config = {"BLOCK_M": 16, "NUM_SEGMENTS": segments, "num_warps": warps}
    return Candidate("paged_3d", config, us, evidence, **fields)


def faults(family: FamilyTable) -> list[str]:
    return [str(fault) for fault in check_table(Table("gfx950", 256, 64, {}, (family,)))]


def compilations(family: FamilyTable) -> set[tuple[object, ...]]:
    return {
        (kernel, *sorted((name, value) for name, value in row.config.items() if name != "NUM_SEGMENTS"))
        for kernel, rows in family.configs.items()
        for row in rows
    }


def random_cells(seed: int) -> Cells:
    random_ = random.Random(seed)
    cells: Cells = {}
    for num_seqs in (1, 8, 64):
        for q in (1, 2, 4):
            for k in (256, 2048, 16384):
                if random_.random() < 0.2:
                    continue
                split_us = [random_.uniform(10, 20) for _ in range(4)]
                cells[num_seqs, q, k] = [
                    two_d(random_.uniform(10, 20), rules=("aiter",)),
                    two_d(math.nan),
                    *(
                        split(us, 8 << i, 2 << i % 2, rules=("vllm",) if i == 0 else ())
                        for i, us in enumerate(split_us)
                    ),
                ]
    return cells


@pytest.mark.parametrize("seed", range(20))
def test_random_cells_become_a_table_that_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    cells = random_cells(seed)
    family = build_family(FAMILY, cells)
    table = Table("gfx950", 256, 64, {"triton": "3.9.0"}, (family,))
    assert check_table(table) == []
    write_table(tmp_path / "t.yaml", table)
    assert load_table(tmp_path / "t.yaml") == table
    for sizes, items in cells.items():
        kernel, row = family.find(sizes)
        chosen = next(item for item in items if (item.kernel, item.config) == (kernel, row.config) and item.us > 0)
        best = min(item.us for item in items if item.us > 0)
        assert chosen.us <= best * 1.02
        assert row.us is not None
        assert row.regret is not None
        assert row.us[0] * 0.999 <= chosen.us <= row.us[1] * 1.001
        assert chosen.us / best <= row.regret + 0.0006


@pytest.mark.parametrize("seed", range(5))
def test_order_of_cells_and_candidates_does_not_matter(seed: int) -> None:
    random_ = random.Random(seed)
    cells = random_cells(seed)
    sizes = random_.sample(list(cells), len(cells))
    shuffled = {key: random_.sample(cells[key], len(cells[key])) for key in sizes}
    assert build_family(FAMILY, shuffled) == build_family(FAMILY, cells)


def test_one_compilation_within_tolerance_replaces_many() -> None:
    cells = {
        (1, 1, 1024): [split(10.0, warps=2), split(10.1, warps=4)],
        (1, 1, 8192): [split(20.0, warps=8), split(20.3, warps=4)],
    }
    assert len(compilations(build_family(FAMILY, cells))) == 1
    assert len(compilations(build_family(FAMILY, cells, tolerance=0.001))) == 2


def test_fewer_segment_counts_are_preferred_within_one_compilation() -> None:
    cells = {
        (1, 1, 1024): [split(10.0, 8), split(10.1, 16)],
        (1, 1, 8192): [split(20.0, 32), split(20.3, 16)],
    }
    rows = build_family(FAMILY, cells).configs["paged_3d"]
    assert [row.config["NUM_SEGMENTS"] for row in rows] == [16]
    assert (rows[0].us, rows[0].regret) == ((10.1, 20.3), 1.015)


def test_routes_change_with_the_first_key_past_a_cell_and_early_towards_more_sequences() -> None:
    cells = {
        (1, 1, 256): [two_d(5.0), split(9.0)],
        (1, 1, 1024): [two_d(20.0), split(9.0)],
        (64, 1, 256): [two_d(50.0), split(90.0)],
        (64, 1, 1024): [two_d(200.0), split(220.0)],
    }
    family = build_family(FAMILY, cells)
    assert [(row.num_seqs, dict(row.routes)) for row in family.routing] == [
        ((1, 2), {1: "paged_2d", 257: "paged_3d"}),
        ((3, math.inf), {1: "paged_2d"}),
    ]
    assert family.find((2, 1, 256))[0] == "paged_2d"
    assert family.find((2, 1, 257))[0] == "paged_3d"


@pytest.mark.parametrize("axis", [1, 2])
def test_query_and_key_lengths_are_answered_by_the_next_larger_cell(axis: int) -> None:
    def sizes(length: int) -> tuple[int, int, int]:
        return (1, length, 9000) if axis == 1 else (1, 1, length)

    family = build_family(FAMILY, {sizes(2): [split(10.0, 8)], sizes(4): [split(10.0, 64)]})
    segments = [family.find(sizes(length))[1].config["NUM_SEGMENTS"] for length in (1, 2, 3, 4, 5000)]
    assert segments == [8, 8, 64, 64, 64]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("times", [2, 1000])
def test_sizes_beyond_the_tuned_ones_are_answered_by_the_largest(axis: int, times: int) -> None:
    tuned = [(1, 1, 1024), (64, 16, 65536)]
    cells = {
        sizes: [split(10.0, 8 << sum(size != tuned[0][i] for i, size in enumerate(sizes)))]
        for sizes in itertools.product(*zip(*tuned, strict=True))
    }
    family = build_family(FAMILY, cells)
    beyond = tuple(size * times if i == axis else size for i, size in enumerate(tuned[1]))
    assert family.find(beyond) == family.find(tuned[1])  # type: ignore[arg-type]
    assert family.find(tuned[1])[1].config["NUM_SEGMENTS"] == 64


@pytest.mark.parametrize("filler", [None, [], [two_d(math.nan)]])
def test_a_missing_cell_takes_the_nearest_answer(filler: list[Candidate] | None) -> None:
    cells: Cells = {
        (1, 1, 1024): [split(10.0, 8)],
        (1, 1, 65536): [split(10.0, 16)],
        (4, 1, 1024): [split(10.0, 32)],
    }
    if filler is not None:
        cells[4, 1, 65536] = filler
    family = build_family(FAMILY, cells)
    assert faults(family) == []
    assert family.find((4, 1, 65536))[1].config["NUM_SEGMENTS"] == 16


def test_a_missing_cell_is_rather_answered_by_more_keys_than_by_fewer() -> None:
    cells: Cells = {
        (1, 1, 1024): [split(10.0, 8)],
        (1, 1, 4096): [split(10.0, 16)],
        (4, 1, 2048): [split(10.0, 32)],
        (16, 1, 2048): [split(10.0, 64)],
    }
    assert build_family(FAMILY, cells).find((1, 1, 2048))[1].config["NUM_SEGMENTS"] == 16


@pytest.mark.parametrize("cells", [{}, {(1, 1, 1): []}, {(1, 1, 1): [two_d(math.inf)]}])
def test_a_family_without_a_valid_candidate_is_refused(cells: Cells) -> None:
    with pytest.raises(ValueError, match=r"8/1/128 .* valid candidate"):
        build_family(FAMILY, cells)


def test_a_family_tells_the_largest_sizes_that_were_tuned() -> None:
    cells: Cells = {(1, 4, 65536): [two_d(9.0)], (8, 1, 1024): [two_d(9.0)], (64, 1, 10**6): [two_d(math.nan)]}
    assert build_family(FAMILY, cells).tuned_up_to == (8, 4, 65536)


def test_a_row_reports_the_worst_of_its_cells() -> None:
    cells = {
        (1, 1, 1024): [
            split(10.0, spread=0.01, samples=30, error=1e-3, evidence="measured"),
            two_d(13.0, rules=("aiter",), spread=0.0, samples=30, error=1e-3, evidence="measured"),
        ],
        (1, 1, 8192): [
            split(40.0, spread=0.02, samples=10, error=2e-3, evidence="measured"),
            two_d(48.0, rules=("aiter",), spread=0.0, samples=30, error=1e-3, evidence="measured"),
        ],
    }
    (row,) = build_family(FAMILY, cells).configs["paged_3d"]
    assert (row.us, row.regret, row.best_rule) == ((10.0, 40.0), 1.0, 1.2)
    assert (row.evidence, row.spread, row.samples, row.error) == ("measured", 0.02, 10, 0.002)


def test_a_row_is_as_well_known_as_its_weakest_cell() -> None:
    cells = {
        (1, 1, 1024): [split(10.0, evidence="measured", spread=0.01, samples=30, error=1e-3)],
        (1, 1, 8192): [split(40.0, evidence="modelled")],
    }
    (row,) = build_family(FAMILY, cells).configs["paged_3d"]
    assert (row.evidence, row.spread, row.samples, row.error) == ("modelled", None, 0, None)


@pytest.mark.parametrize(
    ("stays", "other", "noise"),
    [
        ({"segments": 8}, {"segments": 16}, 0.0009),
        ({"warps": 2}, {"warps": 4}, 0.0009),
        ({"warps": 8, "rules": ("aiter",)}, {"warps": 1}, 0.005),
    ],
)
def test_noise_does_not_change_the_winner(stays: dict[str, Any], other: dict[str, Any], noise: float) -> None:
    """Of two equally fast configurations the simpler one wins every sweep, and a rule's within the spread."""
    sizes = [(num_seqs, 1, keys) for num_seqs in (1, 8) for keys in (1024, 65536)]
    winners = set()
    for seed in range(50):
        random_ = random.Random(seed)
        cells = {
            cell: [
                split(10 * random_.uniform(1 - noise, 1 + noise), evidence="measured", spread=2 * noise, **fields)
                for fields in (other, stays)
            ]
            for cell in sizes
        }
        family = build_family(FAMILY, cells)
        winners |= {tuple(family.find(cell)[1].config.items()) for cell in sizes}
    assert winners == {tuple(split(10.0, **stays).config.items())}


def test_no_measured_cell_becomes_slower_than_a_rule() -> None:
    cells = {
        (1, 1, 1024): [
            split(10.1, warps=4, evidence="measured"),
            split(10.0, warps=2, evidence="measured", rules=("aiter",)),
        ],
        (1, 1, 8192): [split(20.0, warps=4, evidence="measured"), split(30.0, warps=2, evidence="measured")],
    }
    family = build_family(FAMILY, cells)
    assert [row.config["num_warps"] for row in family.configs["paged_3d"]] == [2, 4]
