from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.load import LazyTable, load_table, open_table
from attn_tune.store.table import FamilyTable, Table, TableError, dump_table

TUNED = "    tuned_up_to: {num_seqs: 0, max_seqlen_q: 1, max_seqlen_k: 1}\n    routing:\n"
Edit = tuple[str, str]  # text to replace, its replacement


def edited(text: str, edit: Edit) -> str:
    assert edit[0] in text
    return text.replace(*edit, 1)


def load_all(path: Path) -> Table:
    """Through the lazy reader: every family asked for."""
    lazy = open_table(path)
    families = tuple(lazy.family(family) for family in lazy.families)
    return Table(lazy.arch, lazy.compute_units, lazy.wave_size, lazy.built_with, families)


READERS = pytest.mark.parametrize("read", [load_table, load_all])


def lines(table: Table) -> list[int]:
    """Every line number that a table keeps."""
    return [
        line
        for family in table.families
        for line in (
            family.line,
            *(row.line for row in family.routing),
            *(row.line for rows in family.configs.values() for row in rows),
        )
    ]


@READERS
def test_a_table_is_read_with_its_lines(tmp_path: Path, table: Table, text: str, read: Callable[[Path], Table]) -> None:
    (tmp_path / "t.yaml").write_text(text)
    found = read(tmp_path / "t.yaml")
    assert found == table
    assert lines(found) == [5, 7, 8, 9, 12, 18, 27, 29, 32]


@READERS
@pytest.mark.parametrize("change", [lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")])
def test_byte_order_mark_and_windows_line_ends_are_read(
    tmp_path: Path, table: Table, text: str, read: Callable[[Path], Table], change: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "t.yaml").write_bytes(change(text.encode()))
    assert read(tmp_path / "t.yaml") == table


@READERS
@pytest.mark.parametrize(
    ("edit", "line", "field", "reason"),
    [
        (("schema: 1", "schema: 2"), 1, "schema", "schema 2 is not supported.* reads schema 1"),
        (("schema: 1", "schema: one"), 1, "schema", "integer"),
        (("wave_size: 64", "wave_size: 32"), 0, "arch.wave_size", "gfx950 has waves of 64"),
        (("compute_units: 256", "compute_units: true"), 2, "arch.compute_units", "reads as true or false"),
        (("compute_units: 256", "compute_units: 0400"), 2, "arch.compute_units", "integer"),
        (("triton: 3.9.0", "triton: 3.9"), 3, "built_with.triton", "must be text, .* reads as a number"),
        (("built_with:", "with:"), 3, "with", "unknown field"),
        (("page_size: 16", "page_sise: 16"), 5, "families[0].problem", "page_sise"),
        (("page_size: 16", 'page_size: "16"'), 5, "families[0].problem", "page_size"),
        (("page_size: 16", "page_size: 010"), 5, "families[0].problem.page_size", "integer"),
        (("page_size: 16", "page_size: 16, page_size: 16"), 5, "families[0].problem", "duplicate"),
        (("kv_dtype: fp8_e4m3", "kv_dtype: fp7"), 5, "families[0].problem", "kv_dtype"),
        (("sinks: true", "sinks: on"), 27, "families[1].problem.sinks", "write true or false"),
        (("513: paged_3d", "0x201: paged_3d"), 7, "families[0].routing[0].routes.0x201", "max_seqlen_k"),
        (("513: paged_3d", "513: on"), 7, "families[0].routing[0].routes.513", "must be text"),
        (("num_seqs: [1, 64]", "num_seqs: [64, 1]"), 7, "families[0].routing[0]", "num_seqs"),
        (("num_seqs: [1, 64]", "num_seqs: [1, 1e2]"), 7, "families[0].routing[0].num_seqs[1]", "reads as text"),
        (("num_seqs: [1, 64]", "num_seqs: [1, 2, 3]"), 7, "families[0].routing[0].num_seqs", "3 values"),
        (("num_seqs: [1, 64]", "num_seqs: 1"), 7, "families[0].routing[0].num_seqs", "list"),
        (("TILE_SIZE: 32", "TILE_SIZE: 32.0"), 13, "families[0].configs.paged_2d[0].config.TILE_SIZE", "integer"),
        (("TILE_SIZE: 32", "TILE_SIZE: -32"), 13, "families[0].configs.paged_2d[0].config.TILE_SIZE", "integer"),
        (("TILE_SIZE: 32", "TILE_SIZE: 24"), 12, "configs.paged_2d", "TILE_SIZE must be a power of two"),
        (("BLOCK_M: 16", "BLOCK_M: 8"), 12, "configs.paged_2d", "BLOCK_M must hold the 16 query heads"),
        (("us: [12.3, 131.6]", "us: [131.6, 12.3]"), 14, "families[0].configs.paged_2d[0].us", "shortest"),
        (("us: [12.3, 131.6]", "us: 0"), 14, "families[0].configs.paged_2d[0].us", "above 0"),
        (("us: [12.3, 131.6]", "us: .nan"), 14, "families[0].configs.paged_2d[0].us", "number"),
        (("us: [12.3, 131.6]", "us: 1e-3"), 14, "families[0].configs.paged_2d[0].us", "'1e-3', .* as text"),
        (("us: [12.3, 131.6]", "us: 1_000.0"), 14, "families[0].configs.paged_2d[0].us", "number"),
        (("us: [12.3, 131.6]", "us: 1:30"), 14, "families[0].configs.paged_2d[0].us", "number"),
        (("          us: [12.3, 131.6]\n", ""), 12, "families[0].configs.paged_2d[0]", "field us is missing"),
        (("evidence: modelled", "evidence: guess"), 15, "families[0].configs.paged_2d[0].evidence", "must be one of"),
        (("regret: 1.0\n", "regrets: 1.0\n"), 16, "families[0].configs.paged_2d[0].regrets", "unknown field"),
        (("    routing:\n", TUNED), 6, "families[0].tuned_up_to.num_seqs", "an integer from 1 on"),
        (("samples: 30", "samples: 30.5"), 25, "families[0].configs.paged_3d[0].samples", "integer"),
        (("- problem: {num_query_heads: 64", "- problem: {num_query_heads: 6"), 27, "families[1].problem", "multiple"),
    ],
)
def test_an_error_names_file_line_and_field(
    tmp_path: Path, text: str, read: Callable[[Path], Table], edit: Edit, line: int, field: str, reason: str
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(edited(text, edit))
    with pytest.raises(TableError, match=reason) as caught:
        read(path)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


@READERS
def test_a_family_given_twice_is_refused_with_both_lines(
    tmp_path: Path, text: str, read: Callable[[Path], Table]
) -> None:
    block = text[text.index("  - problem: {num_query_heads: 64") :]
    (tmp_path / "t.yaml").write_text(text + block)
    with pytest.raises(TableError, match="already on line 27") as caught:
        read(tmp_path / "t.yaml")
    assert caught.value.line == 35


@READERS
def test_a_file_cut_at_any_byte_is_an_error_or_its_first_families(
    tmp_path: Path, table: Table, text: str, read: Callable[[Path], Table]
) -> None:
    path = tmp_path / "t.yaml"
    whole: list[int] = []
    for cut in range(len(text)):
        path.write_text(text[:cut])
        try:
            found = read(path)
        except TableError:
            continue
        whole.append(cut)
        assert [strip_notes(family) for family in found.families] == [
            strip_notes(family) for family in table.families[: len(found.families)]
        ]
    # Cuts after a whole first family: before any of the notes that end its last row, or before the second family.
    assert len(whole) == 6


def strip_notes(family: FamilyTable) -> FamilyTable:
    """A family without the numbers that a row may lack."""
    configs = {
        kernel: tuple(replace(row, regret=None, best_rule=None, spread=None, samples=0, error=None) for row in rows)
        for kernel, rows in family.configs.items()
    }
    return replace(family, configs=configs)


@pytest.mark.parametrize(
    "edit",
    [
        ("head_size: 256,", "head_size: 256,\n      "),
        ("513: paged_3d}", '513: "paged_3d"}'),
        ("  - problem: {num_query_heads: 64", "  - problem: # sinks\n      {num_query_heads: 64"),
        ("    routing:\n", "    routing: # what's run\n"),
        ("  - problem: {num_query_heads: 64", "  - # second\n    problem: {num_query_heads: 64"),
        ("  paged_3d:\n", "  paged_3d: &rows\n"),
    ],
)
def test_a_layout_changed_by_hand_reads_the_same_either_way(tmp_path: Path, text: str, edit: Edit) -> None:
    (tmp_path / "t.yaml").write_text(edited(text, edit))
    strict, lazy = load_table(tmp_path / "t.yaml"), load_all(tmp_path / "t.yaml")
    assert (strict, lines(strict)) == (lazy, lines(lazy))


def test_comments_and_blank_lines_do_not_move_lines(tmp_path: Path, text: str) -> None:
    text = text.replace("    configs:\n", "# by hand\n\n    configs:\n").replace("    routing:", "    routing: # x")
    (tmp_path / "t.yaml").write_text("# title\n" + text)
    assert lines(load_all(tmp_path / "t.yaml")) == lines(load_table(tmp_path / "t.yaml"))


def test_a_broken_family_costs_only_itself_at_run_time(tmp_path: Path, table: Table, text: str) -> None:
    (tmp_path / "t.yaml").write_text(edited(text, ("regret: 1.004", "regret: [")))
    lazy = open_table(tmp_path / "t.yaml")
    broken, good = (family.family for family in table.families)
    assert lazy.family(good) == table.families[1]
    assert lazy.family(good) is lazy.family(good)
    with pytest.raises(TableError, match="not valid YAML") as caught:
        lazy.family(broken)
    assert 22 <= caught.value.line <= 24
    with pytest.raises(TableError):
        load_table(tmp_path / "t.yaml")


def test_an_unknown_family_is_a_key_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(KeyError):
        open_table(tmp_path / "t.yaml").family(AttentionFamily(1, 1, 8))


def test_a_table_without_families_is_read(tmp_path: Path, table: Table) -> None:
    empty = replace(table, families=())
    (tmp_path / "t.yaml").write_text(dump_table(empty))
    assert load_table(tmp_path / "t.yaml") == empty == load_all(tmp_path / "t.yaml")


def test_opening_does_not_pay_for_rows(tmp_path: Path, table: Table) -> None:
    first = table.families[0]
    families = tuple(
        replace(first, family=AttentionFamily(16, 1, 8 * size, kv_dtype="fp8_e4m3")) for size in range(1, 101)
    )
    path = tmp_path / "t.yaml"
    path.write_text(dump_table(replace(table, families=families)))

    def seconds(read: Callable[[Path], Table | LazyTable]) -> float:
        start = time.perf_counter()
        read(path)
        return time.perf_counter() - start

    assert min(seconds(open_table) for _ in range(5)) < seconds(load_table) / 5
    assert load_all(path) == load_table(path)
