"""Segments that follow from the sizes asked for: as many as a row's programs allow, and none without keys."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import pytest
from sample_tables import CONFIG_3D, FAMILY, family_rows, write_sample

from attn_tune import get_config
from attn_tune.kernels import Kernel, register, registry
from attn_tune.problem import AttentionFamily
from attn_tune.runtime.answer import Answer

SIZES = {"num_seqs": 8, "max_seqlen_q": 1, "max_seqlen_k": 65536}
FILLING = {("NUM_PROGRAMS" if name == "NUM_SEGMENTS" else name): value for name, value in CONFIG_3D.items()} | {
    "NUM_PROGRAMS": 512
}


def ask(**changes: Any) -> Answer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no tuned config")
        return get_config(**{"arch": "gfx950", **vars(FAMILY), **SIZES} | changes)


def segments(**changes: Any) -> int:
    answer = ask(**changes)
    assert answer.route == "paged_3d"
    assert "NUM_PROGRAMS" not in answer.config
    assert list(answer.config) == list(CONFIG_3D)
    return answer.config["NUM_SEGMENTS"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, 64),
        ({"num_seqs": 1}, 256),  # never more
        ({"num_seqs": 7}, 71),  # 73 would leave two without one of the 2048 tiles
        ({"num_seqs": 60}, 8),
        ({"max_seqlen_q": 2}, 64),  # BLOCK_M 32 holds two tokens of 16 heads
        ({"max_seqlen_q": 3}, 32),
        ({"num_seqs": 64, "max_seqlen_q": 8}, 2),
    ],
)
def test_a_row_of_programs_fills_the_device_at_every_size(
    user_tables: Path, sizes: dict[str, int], expected: int
) -> None:
    write_sample(user_tables, family_rows(split=FILLING))
    assert segments(**sizes) == expected


@pytest.mark.parametrize(("num_seqs", "expected"), [(1, 256), (2, 128), (8, 32), (32, 8)])
def test_more_kv_heads_make_fewer_segments(user_tables: Path, num_seqs: int, expected: int) -> None:
    write_sample(user_tables, family_rows(split=FILLING))
    assert segments(num_query_heads=32, num_kv_heads=2, num_seqs=num_seqs) == expected


@pytest.mark.parametrize("config", [CONFIG_3D, FILLING])
@pytest.mark.parametrize("max_seqlen_k", [513, 700, 1100, 2049, 5000])
def test_no_segment_is_without_keys(user_tables: Path, config: dict[str, int], max_seqlen_k: int) -> None:
    write_sample(user_tables, family_rows(split=config))
    tiles = -(-max_seqlen_k // CONFIG_3D["TILE_SIZE"])
    asked = 16 if config is CONFIG_3D else 64
    found = segments(max_seqlen_k=max_seqlen_k)
    of_each = -(-tiles // asked)
    assert found <= asked
    assert -(-tiles // found) == of_each  # no program works longer for it
    assert (found - 1) * of_each < tiles


def test_a_window_counts_only_what_it_shows(user_tables: Path) -> None:
    windowed = AttentionFamily(**vars(FAMILY) | {"sliding_window": 256})
    write_sample(user_tables, family_rows(windowed, split=FILLING))
    assert segments(sliding_window=256) <= 256 // CONFIG_3D["TILE_SIZE"] + 2


def test_uneven_batches_are_split_like_the_long_sequences_in_them(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(split=FILLING))
    assert segments(num_seqs=64) == 8
    assert segments(num_seqs=64, total_seqlen_k=65536 + 63) == 256


def test_the_chain_says_where_the_segments_come_from(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(split=FILLING))
    assert "NUM_SEGMENTS 64: at most 512 programs" in ask().explain()


def test_the_same_segments_are_the_same_answer(user_tables: Path) -> None:
    write_sample(user_tables, family_rows(split=FILLING))
    assert ask(num_seqs=60) is ask(num_seqs=64)


def test_a_third_partys_segments_are_its_own_affair(user_tables: Path) -> None:
    register(cast(Kernel, ThirdParty()))
    try:
        write_sample(user_tables, family_rows(kernel="theirs"))
        assert ask(max_seqlen_k=700).config["NUM_SEGMENTS"] == CONFIG_3D["NUM_SEGMENTS"]
    finally:
        registry._KERNELS.pop("theirs")


class ThirdParty:
    """Enough of a kernel to be asked for its config."""

    name = "theirs"

    def supports(self, *_: object) -> None:
        return None

    def complete(self, config: dict[str, int], _arch: object) -> dict[str, int]:
        return dict(config)
