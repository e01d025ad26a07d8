from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.overlay import merge_families, table_paths
from attn_tune.store.table import FamilyTable, Table


def with_evidence(family: FamilyTable, evidence: str, mark: int) -> FamilyTable:
    """The family with all rows of one evidence, marked by a config value."""
    configs = {
        kernel: tuple(replace(row, evidence=evidence, config={"MARK": mark}) for row in rows)
        for kernel, rows in family.configs.items()
    }
    return replace(family, configs=configs)


def mark(family: FamilyTable) -> int:
    return family.configs["paged_2d"][0].config["MARK"]


@pytest.mark.parametrize(
    ("shipped", "user", "winner"),
    [
        ("measured", "measured", "user"),
        ("modelled", "modelled", "user"),
        ("rule", "rule", "user"),
        ("modelled", "measured", "user"),
        ("rule", "modelled", "user"),
        ("measured", "modelled", "shipped"),
        ("measured", "rule", "shipped"),
        ("modelled", "rule", "shipped"),
    ],
)
def test_better_evidence_wins_then_the_user(table: Table, shipped: str, user: str, winner: str) -> None:
    family = table.families[0]
    (merged,) = merge_families([with_evidence(family, shipped, 1)], [with_evidence(family, user, 2)])
    assert mark(merged) == {"shipped": 1, "user": 2}[winner]


def test_one_weak_row_makes_a_family_weak(table: Table) -> None:
    family = with_evidence(table.families[0], "measured", 1)
    weak = replace(family, configs={**family.configs, "paged_3d": with_evidence(family, "rule", 1).configs["paged_3d"]})
    user = with_evidence(family, "modelled", 2)
    assert mark(merge_families([weak], [user])[0]) == 2
    assert mark(merge_families([family], [user])[0]) == 1


def test_families_of_either_side_are_kept_in_order(table: Table) -> None:
    first, second = table.families
    third = replace(first, family=AttentionFamily(1, 1, 64))
    assert merge_families([second, first], [third, first]) == (second, first, third)
    assert merge_families([], []) == ()


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"ATTN_TUNE_CONFIG_DIR": "/a", "XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/a"),
        ({"ATTN_TUNE_CONFIG_DIR": "~/a", "HOME": "/h"}, "/h/a"),
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/attn-tune"),
        ({"ATTN_TUNE_CONFIG_DIR": "", "XDG_CONFIG_HOME": "", "HOME": "/h"}, "/h/.config/attn-tune"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/attn-tune"),
    ],
)
def test_the_users_table_comes_first(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], directory: str
) -> None:
    for name in ("ATTN_TUNE_CONFIG_DIR", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    user, shipped = table_paths("AMD Instinct MI355X")
    assert user == Path(directory, "gfx950.yaml")
    assert shipped.name == "gfx950.yaml"
    assert (shipped.parent / "__init__.py").exists()


@pytest.mark.parametrize("arch", ["../../etc/passwd", "NVIDIA GeForce RTX 4090", "a/b", "", "\0"])
def test_no_device_name_leaves_the_directory(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    monkeypatch.setenv("ATTN_TUNE_CONFIG_DIR", "/a")
    user, shipped = table_paths(arch)
    assert user.parent == Path("/a")
    assert not shipped.exists()
