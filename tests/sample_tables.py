"""Small tables to look things up in, and a place to put them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from attn_tune.arch import get_arch
from attn_tune.evaluate.source import kernel_source_hash
from attn_tune.problem import AttentionFamily
from attn_tune.runtime.lookup import reload_tables
from attn_tune.store.table import Box, ConfigRow, FamilyTable, RoutingRow, Table, write_table

CONFIG_2D = {"BLOCK_M": 16, "TILE_SIZE": 64, "NUM_SEGMENTS": 1, "num_warps": 4, "num_stages": 2, "waves_per_eu": 0}
CONFIG_3D = {"BLOCK_M": 32, "TILE_SIZE": 32, "NUM_SEGMENTS": 16, "num_warps": 2, "num_stages": 2, "waves_per_eu": 2}

# No shipped table has a shuffled cache, and families of different layouts are never near: only these tests' answer.
FAMILY = AttentionFamily(16, 1, 128, kv_dtype="fp8_e4m3", kv_layout="shuffled")

END = math.inf


def family_rows(
    family: AttentionFamily = FAMILY,
    evidence: str = "modelled",
    split: Mapping[str, int] | None = None,
    small: Mapping[str, int] | None = None,
    kernel: str = "paged_3d",
) -> FamilyTable:
    """Decode and verify up to 8 tokens split from 513 keys on at up to 64 sequences; else paged_2d, in two rows.

    ``small`` and ``split`` are the configs of paged_2d and of ``kernel``.
    """
    return FamilyTable(
        family,
        (
            RoutingRow((1, 8), (1, 64), {1: "paged_2d", 513: kernel}),
            RoutingRow((1, 8), (65, END), {1: "paged_2d"}),
            RoutingRow((9, END), (1, END), {1: "paged_2d"}),
        ),
        {
            "paged_2d": (
                ConfigRow(Box((1, 8), (1, END)), small or CONFIG_2D, evidence, (10.0, 20.0), 1.0, 1.5),
                ConfigRow(
                    Box((9, END), (1, END)), {**(small or CONFIG_2D), "num_warps": 8}, evidence, (30.0, 4000.0), 1.01
                ),
            ),
            kernel: (
                ConfigRow(Box((1, 8), (1, 64), (513, END)), split or CONFIG_3D, evidence, (11.5, 99.0), 1.0, 1.25),
            ),
        },
    )


def sample_table(
    *families: FamilyTable, arch: str = "gfx950", triton: str | None = None, kernels: str | None = None
) -> Table:
    """A table of some families (of one, if none are given) that is up to date unless told otherwise."""
    spec = get_arch(arch)
    built_with = {"triton": triton or version("triton"), "kernels": kernels or kernel_source_hash()}
    return Table(spec.name, spec.compute_units, spec.wave_size, built_with, families or (family_rows(),))


def write_sample(directory: Path, *families: FamilyTable, arch: str = "gfx950", **built_with: str) -> Path:
    """The sample table as the file that lookups for its arch read."""
    path = directory / f"{arch}.yaml"
    write_table(path, sample_table(*families, arch=arch, **built_with))
    return path


@pytest.fixture
def user_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the user's tables, empty, with nothing remembered of other tests' tables."""
    directory = tmp_path / "tables"
    directory.mkdir()
    monkeypatch.setenv("ATTN_TUNE_CONFIG_DIR", str(directory))
    reload_tables()
    yield directory
    reload_tables()
