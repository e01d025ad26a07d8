"""Which of several tables is believed at run time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_tables import CONFIG_3D, FAMILY, family_rows, write_sample

from attn_tune.problem import AttentionFamily
from attn_tune.runtime.tables import find_rows, open_tables
from attn_tune.store.load import LazyTable, open_table

NEAR = AttentionFamily(**vars(FAMILY) | {"page_size": 32})


def opened(directory: Path, name: str, family: AttentionFamily, evidence: str) -> LazyTable:
    (directory / name).mkdir()
    return open_table(write_sample(directory / name, family_rows(family, evidence)))


@pytest.mark.parametrize(
    ("user", "shipped", "believed"),
    [
        ("modelled", "modelled", "user"),
        ("measured", "measured", "user"),
        ("modelled", "measured", "shipped"),
        ("measured", "modelled", "user"),
        ("rule", "modelled", "shipped"),
    ],
)
def test_better_evidence_is_believed_then_the_user(tmp_path: Path, user: str, shipped: str, believed: str) -> None:
    tables = [opened(tmp_path, "user", FAMILY, user), opened(tmp_path, "shipped", FAMILY, shipped)]
    found = find_rows(tables, FAMILY, 64)
    assert found is not None
    assert Path(found.table.path).parent.name == believed
    assert found.distance == 0


def test_an_exact_family_beats_a_near_one_of_better_evidence(tmp_path: Path) -> None:
    tables = [opened(tmp_path, "user", NEAR, "measured"), opened(tmp_path, "shipped", FAMILY, "rule")]
    found = find_rows(tables, FAMILY, 64)
    assert found is not None
    assert (found.rows.family, found.distance) == (FAMILY, 0)


def test_no_other_family_answers_across_wave_sizes(tmp_path: Path) -> None:
    tables = [opened(tmp_path, "user", NEAR, "measured")]
    assert find_rows(tables, FAMILY, 64) is not None
    assert find_rows(tables, FAMILY, 32) is None
    assert find_rows(tables, FAMILY, None) is None


def test_a_table_is_opened_again_only_after_it_changed(user_tables: Path) -> None:
    path = write_sample(user_tables)
    (first, *_), _ = open_tables("gfx950")
    assert open_tables("gfx950")[0][0] is first
    write_sample(user_tables, family_rows(split={**CONFIG_3D, "NUM_SEGMENTS": 128}))
    os.utime(path, (1, 1))
    (second, *_), ignored = open_tables("gfx950")
    assert second.family(FAMILY).configs["paged_3d"][0].config["NUM_SEGMENTS"] == 128
    assert ignored == []
