"""What becomes of a table's earlier families when a sweep writes it again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import CONFIG_2D, FAMILY, family_rows, sample_table

from attn_tune.arch import get_arch
from attn_tune.problem import AttentionFamily
from attn_tune.search.tables import distinct_compilations, kept_families, save_table
from attn_tune.store.load import load_table
from attn_tune.store.table import TableError, write_table

GFX950 = get_arch("gfx950")
OTHER = AttentionFamily(6, 2, 64)
BUILT_WITH = {"triton": "3.9.0", "kernels": "5f3a9c0e"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of two families."""
    path = tmp_path / "gfx950.yaml"
    write_table(path, sample_table(family_rows(FAMILY), family_rows(OTHER), **BUILT_WITH))
    return path


def test_without_a_table_nothing_is_kept(tmp_path: Path) -> None:
    assert kept_families(tmp_path / "none.yaml", GFX950, BUILT_WITH, [FAMILY]) == {}


@pytest.mark.parametrize("swept", [[], [OTHER], [FAMILY, OTHER]])
def test_of_the_same_versions_everything_stays_until_it_is_replaced(path: Path, swept: list[AttentionFamily]) -> None:
    kept = kept_families(path, GFX950, BUILT_WITH, swept)
    assert kept == {family: family_rows(family) for family in (FAMILY, OTHER)}


@pytest.mark.parametrize(("name", "version"), [("triton", "4.0.0"), ("policy", "graph-replay")])
def test_of_other_versions_or_times_only_a_table_swept_as_a_whole_may_be_replaced(
    path: Path, name: str, version: str
) -> None:
    newer = BUILT_WITH | {name: version}
    assert kept_families(path, GFX950, newer, [OTHER, FAMILY, AttentionFamily(1, 1, 64)]) == {}
    with pytest.raises(
        ValueError, match=rf"triton 3\.9\.0, .*{name} {re.escape(version)}.*: sweep all of its 2 families"
    ) as caught:
        kept_families(path, GFX950, newer, [OTHER])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("arch", [get_arch("gfx1250"), replace(GFX950, compute_units=32)], ids=["arch", "partition"])
def test_a_table_of_another_device_is_never_replaced(path: Path, arch: object) -> None:
    with pytest.raises(ValueError, match="is a table for gfx950 with 256 compute units, not "):
        kept_families(path, arch, BUILT_WITH, [FAMILY, OTHER])  # type: ignore[arg-type]


def test_a_table_that_is_not_valid_is_not_written_over(path: Path) -> None:
    path.write_text(path.read_text().replace("num_seqs: [65, .inf]", "num_seqs: [66, .inf]", 1))
    with pytest.raises(TableError, match="no row for"):
        kept_families(path, GFX950, BUILT_WITH, [FAMILY, OTHER])


def test_a_saved_table_does_not_depend_on_the_order_of_its_families(tmp_path: Path) -> None:
    families = [family_rows(FAMILY), family_rows(OTHER), family_rows(replace(OTHER, kv_dtype="fp8_e4m3"))]
    texts = []
    for number, order in enumerate((families, families[::-1])):
        path = tmp_path / f"{number}" / "t.yaml"  # the folder is made
        table = save_table(path, GFX950, BUILT_WITH, order)
        assert load_table(path) == table
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]
    assert [rows.family.num_query_heads for rows in table.families] == [6, 6, 16]


def test_a_table_with_a_hole_is_not_saved(path: Path) -> None:
    before = path.read_bytes()
    rows = family_rows(FAMILY)
    with pytest.raises(TableError, match="no row for"):
        save_table(path, GFX950, BUILT_WITH, [replace(rows, routing=rows.routing[1:])])
    assert path.read_bytes() == before


def test_segment_counts_are_not_compilations_of_their_own() -> None:
    rows = family_rows(FAMILY)
    assert distinct_compilations(rows) == 3
    split = rows.configs["paged_3d"][0]
    near, far = (replace(split, when=replace(split.when, num_seqs=ends)) for ends in ((1, 8), (9, 64)))
    far = replace(far, config={**far.config, "NUM_SEGMENTS": 4})
    assert distinct_compilations(replace(rows, configs=rows.configs | {"paged_3d": (near, far)})) == 3
    assert distinct_compilations(family_rows(FAMILY, split=CONFIG_2D)) == 3  # another route is another kernel
