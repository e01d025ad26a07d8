from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from attn_tune.store.load import load_table
from attn_tune.store.table import Box, ConfigRow, RoutingRow, Table, TableError, dump_table, write_table

# Rewrites a table without end, alternating between two versions of it.
WRITER = """
import sys
from dataclasses import replace
from attn_tune.store.load import load_table
from attn_tune.store.table import write_table
table = load_table(sys.argv[1])
other = replace(table, families=table.families[:1])
print("ready", flush=True)
while True:
    write_table(sys.argv[2], other)
    write_table(sys.argv[2], table)
"""


def body(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def test_text_is_as_documented(table: Table, text: str) -> None:
    assert body(dump_table(table)) == text


def test_equal_tables_are_the_same_bytes(table: Table) -> None:
    shuffled = []
    for family in table.families:
        configs = {kernel: tuple(reversed(rows)) for kernel, rows in reversed(list(family.configs.items()))}
        configs = {
            kernel: tuple(replace(row, config=dict(reversed(list(row.config.items())))) for row in rows)
            for kernel, rows in configs.items()
        }
        shuffled.append(replace(family, routing=tuple(reversed(family.routing)), configs=configs))
    assert dump_table(replace(table, families=tuple(shuffled))) == dump_table(table)


@pytest.mark.parametrize(
    "version",
    [
        *("3.9.0", "3.10", "5f3a9c0e", "5e123456", "12345678", "012", "1e-3", "1.0e+3", "0x1f", "0o17", "1_000"),
        *("12:30:45", "2026-01-01", "on", "Yes", "n", "null", "~", "", ".inf", "nan", "a: b", "a #b", "-", "'", '\\"'),
        *("3.9.0+git1234", "{x}", "[x]", "*x", "&x", "!x", "é", "<<", "="),
    ],
)
def test_versions_come_back_as_the_text_they_were(tmp_path: Path, table: Table, version: str) -> None:
    table = replace(table, built_with={"triton": version})
    write_table(tmp_path / "t.yaml", table)
    assert load_table(tmp_path / "t.yaml") == table
    assert yaml.safe_load(dump_table(table))["built_with"] == {"triton": version}


@pytest.mark.parametrize("us", [1e-7, 0.0001234, 0.5, 9.9999, 12.0, 131.6, 99999.0, 1.2345e9, 1e22])
def test_times_come_back_as_numbers_of_four_digits(tmp_path: Path, table: Table, us: float) -> None:
    family = table.families[1]
    row = replace(family.configs["paged_2d"][0], evidence="modelled", us=(us, us))
    table = replace(table, families=(replace(family, configs={"paged_2d": (row,)}),))
    write_table(tmp_path / "t.yaml", table)
    assert load_table(tmp_path / "t.yaml") == table
    stored = yaml.safe_load(dump_table(table))["families"][0]["configs"]["paged_2d"][0]["us"]
    assert math.isclose(stored, us, rel_tol=5.1e-4)
    assert float(stored) == float(f"{us:.4g}")


def test_a_row_holds_its_numbers_as_the_file_shows_them() -> None:
    row = ConfigRow(Box((1, 1), (1, 1)), {}, "measured", (1.23456, 12345.6), 1.00049, 1.3149, 0.01249, 30, 0.00131449)
    assert (row.us, row.regret, row.best_rule, row.spread) == ((1.235, 12350.0), 1.0, 1.315, 0.012)
    assert row.error == 0.00131


@pytest.mark.parametrize("change", [{"us": (math.nan, 1.0)}, {"regret": math.inf}])
def test_a_number_that_is_not_finite_is_not_written(table: Table, change: dict[str, object]) -> None:
    family = table.families[1]
    rows = {"paged_2d": tuple(replace(row, **change) for row in family.configs["paged_2d"])}  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot hold"):
        dump_table(replace(table, families=(replace(family, configs=rows),)))


@pytest.mark.parametrize("name", ["a\nb", "\x7f", "\x85", "\ud800"])
def test_a_name_that_does_not_print_is_not_written(table: Table, name: str) -> None:
    with pytest.raises(ValueError, match="cannot hold the name"):
        dump_table(replace(table, built_with={"kernels": name}))


@pytest.mark.parametrize(
    ("intervals", "field"),
    [
        (((0, 1), (1, 1), (1, 1)), "max_seqlen_q"),
        (((1, 1), (2, 1), (1, 1)), "num_seqs"),
        (((1, 1), (1, 1), (9, 8)), "max_seqlen_k"),
    ],
)
def test_an_empty_box_is_refused(intervals: tuple[tuple[int, int], ...], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Box(*intervals)


@pytest.mark.parametrize("routes", [{}, {0: "paged_2d"}])
def test_routes_start_at_one_or_later(routes: dict[int, str]) -> None:
    with pytest.raises(ValueError, match="routes"):
        RoutingRow((1, 1), (1, 1), routes)


@pytest.mark.parametrize(
    ("sizes", "kernel", "segments"),
    [
        ((1, 1, 512), "paged_2d", None),
        ((1, 1, 513), "paged_3d", 64),
        ((64, 1, 10**9), "paged_3d", 64),
        ((65, 1, 513), "paged_2d", None),
        ((1, 2, 513), "paged_2d", None),
    ],
)
def test_find_follows_both_sides_of_each_threshold(
    table: Table, sizes: tuple[int, int, int], kernel: str, segments: int | None
) -> None:
    found, row = table.families[0].find(sizes)
    assert (found, row.config.get("NUM_SEGMENTS")) == (kernel, segments)


def test_find_names_the_sizes_of_a_hole(table: Table) -> None:
    family = replace(table.families[0], configs={})
    with pytest.raises(KeyError, match="num_seqs 1, max_seqlen_q 2, max_seqlen_k 3"):
        family.find((1, 2, 3))


def test_evidence_of_a_family_is_its_weakest(table: Table) -> None:
    assert [family.evidence for family in table.families] == ["modelled", "rule"]


def test_error_text_leads_with_file_and_line() -> None:
    assert str(TableError("a.yaml", 3, "us", "is odd")) == "a.yaml:3: us: is odd"
    assert str(TableError("a.yaml", 0, "", "is odd")) == "a.yaml: is odd"


def test_write_follows_a_link_and_keeps_it(tmp_path: Path, table: Table) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real" / "t.yaml")
    write_table(tmp_path / "link.yaml", table)
    assert (tmp_path / "link.yaml").is_symlink()
    assert load_table(tmp_path / "real" / "t.yaml") == table


def test_a_failed_write_leaves_the_old_table_and_nothing_else(tmp_path: Path, table: Table) -> None:
    path = tmp_path / "t.yaml"
    write_table(path, table)
    code = """
import resource, sys
from attn_tune.store.load import load_table
from attn_tune.store.table import write_table
table = load_table(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_table(sys.argv[1], table)
except OSError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    assert "cannot write the table: File too large" in out
    assert str(path) in out
    assert load_table(path) == table
    assert os.listdir(tmp_path) == ["t.yaml"]


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, table: Table) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write the table: Not a directory"):
        write_table(tmp_path / "file" / "t.yaml", table)
    with pytest.raises(OSError, match="cannot write the table"):
        write_table(tmp_path / "missing" / "t.yaml", table)
    assert os.listdir(tmp_path) == ["file"]


def test_readers_see_whole_tables_while_two_processes_write_and_die(tmp_path: Path, table: Table) -> None:
    source, path = tmp_path / "source.yaml", tmp_path / "t.yaml"
    write_table(source, table)
    write_table(path, table)
    command = [sys.executable, "-c", WRITER, str(source), str(path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    versions = set()
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        versions.add(len(load_table(path).families))
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert versions == {1, 2}
    assert load_table(path).families[0] == table.families[0]
