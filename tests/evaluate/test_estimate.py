"""Resources guessed before compiling: how they follow the configuration."""

from __future__ import annotations

import pytest

from attn_tune.arch import ARCHS, ArchSpec, get_arch
from attn_tune.evaluate.estimate import estimate_resources
from attn_tune.evaluate.resources import Resources
from attn_tune.kernels import get_kernel
from attn_tune.problem import AttentionFamily, AttentionProblem

FP8 = AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3")
LLAMA = AttentionFamily(32, 8, 128)
ALL_ARCHS = pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)


def estimate(family: AttentionFamily, arch: ArchSpec, **values: int) -> Resources:
    config = {"BLOCK_M": 64, "TILE_SIZE": 32, "NUM_SEGMENTS": 1, "num_warps": 4, "num_stages": 2} | values
    work = get_kernel("paged_2d").work(AttentionProblem(family, 8, 1, 8192), config)
    return estimate_resources(work, family, config, arch)


@ALL_ARCHS
def test_registers_grow_with_rows_and_keys_and_shrink_with_warps(arch: ArchSpec) -> None:
    def registers(**values: int) -> int:
        return estimate(LLAMA, arch, **values).registers

    assert registers(BLOCK_M=128) > registers(BLOCK_M=64) > registers(BLOCK_M=64, num_warps=8)
    assert registers(TILE_SIZE=128) > registers(TILE_SIZE=32)


@ALL_ARCHS
def test_what_does_not_fit_a_thread_spills(arch: ArchSpec) -> None:
    large = estimate(FP8, arch, BLOCK_M=128, TILE_SIZE=256, num_warps=1)
    assert large.registers == arch.max_registers
    assert large.spills > 0
    assert large.loop.scratch >= large.spills
    assert estimate(FP8, arch, BLOCK_M=16, TILE_SIZE=16).spills == 0


@pytest.mark.parametrize(("family", "converts"), [(FP8, True), (LLAMA, False)], ids=["fp8", "bf16"])
def test_only_an_8_bit_cache_is_converted(family: AttentionFamily, converts: bool) -> None:
    loop = estimate(family, get_arch("gfx950"), BLOCK_M=16, TILE_SIZE=64).loop
    assert bool(sum(loop.conversions.values())) == converts


@pytest.mark.parametrize(("arch", "through_lds"), [("sm_90", True), ("gfx950", False)])
def test_a_converted_tile_returns_to_lds_where_the_matrix_unit_reads_it_from_there(
    arch: str, through_lds: bool
) -> None:
    writes = estimate(FP8, get_arch(arch), TILE_SIZE=64).loop.lds_writes
    assert bool(sum(writes.values())) == through_lds
