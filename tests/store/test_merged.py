"""What is believed of an arch's tables, and everything that is wrong with a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.load import read_with_faults
from attn_tune.store.merged import archs_with_tables, believed_tables
from attn_tune.store.overlay import all_table_paths
from attn_tune.store.table import Table, TableError, write_table


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTN_TUNE_CONFIG_DIR", str(tmp_path))
    return tmp_path


def test_the_users_families_are_believed(directory: Path, table: Table) -> None:
    family = replace(table.families[0], family=AttentionFamily(3, 3, 88))  # of no model, so no shipped table has it
    write_table(directory / "gfx950.yaml", replace(table, families=(family,)))
    first, *_ = believed_tables("AMD Instinct MI355X")
    assert first.path == directory / "gfx950.yaml"
    assert first.table.families == (family,)
    found = [rows.family for item in believed_tables("gfx950") for rows in item.table.families]
    assert len(found) == len(set(found))


def test_no_table_is_an_error_that_says_where_one_would_be(directory: Path) -> None:
    with pytest.raises(ValueError, match=f"no table for gfx9999: looked for {directory}"):
        believed_tables("gfx9999")


def test_tables_are_listed_by_their_archs_names(directory: Path, table: Table) -> None:
    for name in ("gfx942", "mi355x", "gfx9999"):
        write_table(directory / f"{name}.yaml", table)
    assert {"gfx942", "gfx9999"} <= set(archs_with_tables())
    assert "mi355x" not in archs_with_tables()
    assert [path.name for path in all_table_paths()][:3] == ["gfx942.yaml", "gfx9999.yaml", "mi355x.yaml"]


def test_every_bad_row_is_found_and_left_out(tmp_path: Path, text: str, table: Table) -> None:
    path = tmp_path / "t.yaml"
    bad = text.replace("us: 131.6", "us: none").replace("513: paged_3d", "513: 3").replace("sinks: true", "sinks: 1")
    path.write_text(bad)
    found, faults = read_with_faults(path)
    assert [(fault.line, fault.field) for fault in faults] == [
        (7, "families[0].routing[0].routes.513"),
        (20, "families[0].configs.paged_3d[0].us"),
        (27, "families[1].problem"),
    ]
    assert found.families[0].routing == table.families[0].routing[1:]
    assert len(found.families) == 1


def test_coverage_is_checked_where_rows_are_valid(tmp_path: Path, text: str, table: Table) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    assert read_with_faults(path) == (table, [])
    path.write_text(text.replace("num_seqs: [1, 64], max_seqlen_k", "num_seqs: [1, 63], max_seqlen_k"))
    (fault,) = read_with_faults(path)[1]
    assert "no row for" in fault.reason


def test_a_file_without_a_header_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("schema: 1\n")
    with pytest.raises(TableError, match="arch is missing"):
        read_with_faults(tmp_path / "t.yaml")
