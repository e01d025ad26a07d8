"""NUM_PROGRAMS in place of NUM_SEGMENTS, where programs fill the device."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.problem import AttentionFamily
from attn_tune.store.programs import by_programs

ONE_HEAD = AttentionFamily(16, 1, 128)
EIGHT_HEADS = AttentionFamily(32, 8, 128)


@pytest.mark.parametrize(
    ("segments", "block_m", "family", "sizes", "expected"),
    [
        (13, 16, ONE_HEAD, (20, 1, 8192), {"NUM_PROGRAMS": 264}),  # 260, and 264 programs make 13 segments too
        (8, 16, ONE_HEAD, (32, 1, 8192), {"NUM_PROGRAMS": 264}),
        (33, 16, ONE_HEAD, (4, 1, 8192), {"NUM_PROGRAMS": 132}),
        (32, 16, ONE_HEAD, (4, 1, 8192), {"NUM_SEGMENTS": 32}),  # 128 programs for 132 units
        (2, 16, EIGHT_HEADS, (32, 1, 8192), {"NUM_PROGRAMS": 528}),
        (128, 16, ONE_HEAD, (8, 1, 8192), {"NUM_PROGRAMS": 1024}),  # 1056 would make 132
        (13, 16, ONE_HEAD, (5, 4, 8192), {"NUM_PROGRAMS": 264}),  # a block for each query token
        (13, 64, ONE_HEAD, (20, 4, 8192), {"NUM_PROGRAMS": 264}),  # one for all four
        (1, 16, ONE_HEAD, (256, 1, 8192), {"NUM_SEGMENTS": 1}),
    ],
)
def test_what_fills_the_device_is_named_by_its_programs(
    segments: int, block_m: int, family: AttentionFamily, sizes: tuple[int, int, int], expected: dict[str, Any]
) -> None:
    config = {"BLOCK_M": block_m, "TILE_SIZE": 64, "NUM_SEGMENTS": segments, "num_warps": 4}
    rest = {name: value for name, value in config.items() if name != "NUM_SEGMENTS"}
    found = by_programs(config, family, sizes, 132)
    assert found == rest | expected
    assert list(found)[2] in expected  # it stays in its place


def test_a_kernel_that_does_not_split_is_left_alone() -> None:
    config = {"BLOCK_M": 16, "TILE_SIZE": 64}
    assert by_programs(config, ONE_HEAD, (512, 1, 8192), 132) == config
