"""LDS estimates and the fitting of configs to an arch."""

from __future__ import annotations

import pytest

from attn_tune.arch import ARCHS, ArchSpec, get_arch
from attn_tune.kernels.lds import fits_lds, fitted, lds_estimate, min_block_m, min_tile_size
from attn_tune.problem import AttentionFamily

BF16 = AttentionFamily(16, 1, 256)
FP8 = AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3")
TILE = 32 * (256 + 256)  # elements of K and V


def config(**values: int) -> dict[str, int]:
    return {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 1, "num_warps": 4, "num_stages": 1} | values


@pytest.mark.parametrize(("num_stages", "buffers"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)])
def test_amd_keeps_one_stage_in_registers(num_stages: int, buffers: int) -> None:
    assert lds_estimate(config(num_stages=num_stages), BF16, get_arch("gfx950")) == buffers * TILE * 2


@pytest.mark.parametrize(("num_stages", "buffers"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 2), (5, 3)])
def test_nvidia_keeps_the_query_and_the_tiles_in_flight(num_stages: int, buffers: int) -> None:
    query = 16 * 256 * 2
    assert lds_estimate(config(num_stages=num_stages), BF16, get_arch("sm_90")) == buffers * TILE * 2 + query


def test_nvidia_adds_a_converted_tile_of_an_8_bit_cache() -> None:
    assert lds_estimate(config(), FP8, get_arch("sm_90")) == TILE + TILE * 2 + 16 * 256 * 2
    assert lds_estimate(config(), FP8, get_arch("gfx950")) == TILE


def test_head_sizes_count_as_padded_to_a_power_of_two() -> None:
    family = AttentionFamily(8, 1, 192, value_head_size=80)
    assert lds_estimate(config(), family, get_arch("gfx950")) == 32 * (256 + 128) * 2


def test_a_config_at_nine_tenths_of_the_limit_fits_and_the_next_does_not() -> None:
    arch = get_arch("gfx942")  # 64 KiB, of which 58982 bytes count: 28 keys of 2048 bytes
    assert fits_lds(config(TILE_SIZE=28), AttentionFamily(4, 1, 512), arch)
    assert not fits_lds(config(TILE_SIZE=29), AttentionFamily(4, 1, 512), arch)


def test_fitting_lowers_stages_before_the_tile() -> None:
    arch = get_arch("gfx942")
    assert fitted(config(num_stages=3), BF16, arch) == config(num_stages=1)
    assert fitted(config(num_stages=3, TILE_SIZE=128), BF16, arch) == config(num_stages=1)


def test_fitting_halves_block_m_last() -> None:
    family = AttentionFamily(4, 1, 1024)
    assert fitted(config(BLOCK_M=128, TILE_SIZE=64, num_stages=2), family, get_arch("sm_90")) == config(
        BLOCK_M=64, TILE_SIZE=16
    )


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_fitting_leaves_alone_what_fits(arch: ArchSpec) -> None:
    small = config(BLOCK_M=64, TILE_SIZE=32)
    assert fitted(small, FP8, arch) == small


def test_fitting_raises_tiles_that_the_matrix_unit_cannot_take() -> None:
    family = AttentionFamily(48, 2, 128, q_dtype="fp8", kv_dtype="fp8")
    assert (min_block_m(family), min_tile_size(family)) == (32, 32)
    assert fitted(config(BLOCK_M=16, TILE_SIZE=8), family, get_arch("gfx950")) == config(BLOCK_M=32, TILE_SIZE=32)


def test_fitting_stops_at_the_smallest_config_when_none_fits() -> None:
    family, arch = AttentionFamily(4, 1, 1024), get_arch("gfx942")
    smallest = fitted(config(TILE_SIZE=64, num_stages=4), family, arch)
    assert smallest == config(TILE_SIZE=16)
    assert not fits_lds(smallest, family, arch)
