"""The performance model: what it must say whatever its constants are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from attn_tune.arch import ARCHS, ArchSpec, get_arch
from attn_tune.evaluate.estimate import estimate_resources
from attn_tune.evaluate.model import Prediction, predict
from attn_tune.evaluate.resources import InstructionMix, Resources
from attn_tune.kernels import Work, get_kernel
from attn_tune.problem import AttentionFamily, AttentionProblem

GFX950 = get_arch("gfx950")
FP8 = AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3")
LLAMA = AttentionFamily(32, 8, 128)
ALL_ARCHS = pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)


def config(**values: int) -> dict[str, int]:
    return {"BLOCK_M": 64, "TILE_SIZE": 32, "NUM_SEGMENTS": 1, "num_warps": 4, "num_stages": 2} | values


def work_of(family: AttentionFamily, sizes: tuple[int, int, int], **values: int) -> Work:
    split = values.get("NUM_SEGMENTS", 1) > 1
    kernel = get_kernel("paged_3d" if split else "paged_2d")
    return kernel.work(AttentionProblem(family, *sizes), config(**values))


def estimated(family: AttentionFamily, sizes: tuple[int, int, int], arch: ArchSpec, **values: int) -> Prediction:
    work = work_of(family, sizes, **values)
    return predict(work, estimate_resources(work, family, config(**values), arch), arch)


def resources(**values: Any) -> Resources:
    """A kernel that keeps two tiles of 16 KiB in LDS and leaves room for several programs on a unit."""
    loop = values.pop("loop", InstructionMix(vector=200, transcendental=16))
    fields = {"registers": 120, "spills": 0, "scratch_bytes": 0, "lds_bytes": 32768, "num_warps": 4} | values
    return Resources(**fields, loop=loop, loops=(loop,))


WORK = Work(
    programs=1024,
    tiles_per_program=64,
    total_tiles=1024 * 64,
    rows=64,
    tile_size=32,
    head_size=256,
    value_head_size=256,
    tile_flops_16bit=2 * 64 * 32 * 512,
    tile_flops_8bit=0,
    tile_converted=0,
    tile_bytes=16384,
    pipelined=True,
    kv_bytes=1024 * 64 * 16384,
    query_bytes=1 << 20,
)


@ALL_ARCHS
@pytest.mark.parametrize(
    "more",
    [
        {"kv_bytes": 2 * WORK.kv_bytes},
        {"tile_bytes": 2 * WORK.tile_bytes},
        {"query_bytes": 1000 * WORK.query_bytes},
        {"partial_bytes": 1 << 28},
        {"tile_flops_16bit": 4 * WORK.tile_flops_16bit},
        {"tile_flops_8bit": 4 * WORK.tile_flops_16bit},
        {"tiles_per_program": 2 * WORK.tiles_per_program, "total_tiles": 2 * WORK.total_tiles},
        {"programs": 2 * WORK.programs, "total_tiles": 2 * WORK.total_tiles},
        {"reduce_programs": 4096, "reduce_segments": 8},
    ],
    ids=lambda more: "+".join(more),
)
def test_more_work_is_never_faster(arch: ArchSpec, more: dict[str, int]) -> None:
    lds = {"lds_bytes": 2 * more.get("tile_bytes", WORK.tile_bytes)}  # the same tiles in flight
    assert predict(replace(WORK, **more), resources(**lds), arch).us >= predict(WORK, resources(), arch).us


@ALL_ARCHS
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["num_seqs", "max_seqlen_q", "max_seqlen_k"])
@pytest.mark.parametrize("family", [FP8, LLAMA], ids=str)
def test_larger_problems_take_longer(arch: ArchSpec, family: AttentionFamily, axis: int) -> None:
    sizes = [64, 4, 8192]
    small = estimated(family, (sizes[0], sizes[1], sizes[2]), arch).us
    sizes[axis] *= 16
    assert estimated(family, (sizes[0], sizes[1], sizes[2]), arch).us > small


@ALL_ARCHS
def test_no_call_is_faster_than_its_bytes_and_its_launch(arch: ArchSpec) -> None:
    floor = arch.launch_seconds + WORK.kv_bytes / arch.bandwidth
    assert predict(WORK, resources(loop=InstructionMix()), arch).us >= floor * 1e6


@ALL_ARCHS
def test_a_program_over_the_lds_limit_takes_forever(arch: ArchSpec) -> None:
    assert math.isfinite(predict(WORK, resources(lds_bytes=arch.lds_per_program), arch).us)
    refused = predict(WORK, resources(lds_bytes=arch.lds_per_program + 1), arch)
    assert refused.us == math.inf
    assert refused.occupancy == 0


@pytest.mark.parametrize(
    ("compiled", "occupancy"),
    [
        (resources(), 4),  # 120 registers
        (resources(registers=129), 3),
        (resources(registers=300), 1),
        (resources(lds_bytes=70000), 2),
        (resources(lds_bytes=90000), 1),
        (resources(num_warps=8), 2),
    ],
)
def test_occupancy_follows_registers_lds_and_warps(compiled: Resources, occupancy: int) -> None:
    assert predict(WORK, compiled, GFX950).occupancy == occupancy


def test_programs_that_share_a_unit_hide_each_others_waits() -> None:
    alone, together = (predict(WORK, resources(registers=registers), GFX950) for registers in (300, 120))
    assert together.us < alone.us


@ALL_ARCHS
def test_one_program_more_than_a_wave_costs_another_wave(arch: ArchSpec) -> None:
    compiled = resources(loop=InstructionMix(vector=2000, transcendental=160))  # bound by its instructions
    slots = arch.compute_units * arch.programs_per_unit(4, 120, 32768)

    def us(programs: int) -> float:
        tiles = programs * WORK.tiles_per_program
        work = replace(WORK, programs=programs, total_tiles=tiles, kv_bytes=tiles * WORK.tile_bytes)
        return predict(work, compiled, arch).us

    assert us(slots + 1) > 1.8 * us(slots)
    assert us(2 * slots) == pytest.approx(us(slots + 1), rel=0.02)


def test_programs_of_unequal_length_even_out_but_for_the_longest() -> None:
    waves = 4  # of programs on GFX950
    equal = replace(WORK, programs=waves * WORK.programs, total_tiles=waves * WORK.total_tiles)
    half = replace(equal, total_tiles=equal.total_tiles // 2)
    assert predict(half, resources(), GFX950).us < predict(equal, resources(), GFX950).us
    one_long = replace(half, tiles_per_program=8 * WORK.tiles_per_program)
    assert predict(one_long, resources(), GFX950).us > predict(half, resources(), GFX950).us


@ALL_ARCHS
def test_loading_ahead_hides_the_memory_latency(arch: ArchSpec) -> None:
    compiled = resources(registers=arch.max_registers)  # one program on a unit: nobody else hides it
    unpipelined = predict(replace(WORK, pipelined=False), compiled, arch)
    assert predict(WORK, compiled, arch).us < unpipelined.us
    deeper = predict(WORK, replace(compiled, lds_bytes=2 * compiled.lds_bytes), arch)
    assert deeper.us <= predict(WORK, compiled, arch).us


@ALL_ARCHS
@pytest.mark.parametrize("family", [FP8, LLAMA], ids=str)
def test_splitting_helps_when_programs_are_fewer_than_units(arch: ArchSpec, family: AttentionFamily) -> None:
    sizes = (1, 4, 65536)
    assert estimated(family, sizes, arch, NUM_SEGMENTS=16).us < 0.5 * estimated(family, sizes, arch).us


@ALL_ARCHS
def test_splitting_does_not_pay_when_programs_are_many_and_short(arch: ArchSpec) -> None:
    sizes = (256, 1, 1024)
    assert estimated(LLAMA, sizes, arch, BLOCK_M=16, NUM_SEGMENTS=8).us > estimated(LLAMA, sizes, arch, BLOCK_M=16).us


@ALL_ARCHS
def test_a_tile_for_all_query_tokens_beats_reading_the_cache_for_each(arch: ArchSpec) -> None:
    """Speculative verify: 4 tokens of 16 heads fill 64 rows."""
    sizes = (20, 4, 70000)
    one_token, all_tokens = (estimated(FP8, sizes, arch, BLOCK_M=rows, NUM_SEGMENTS=32).us for rows in (16, 64))
    assert all_tokens < one_token


@ALL_ARCHS
@pytest.mark.parametrize(
    "slower",
    [
        InstructionMix(vector=4000, transcendental=16),
        InstructionMix(vector=200, transcendental=1600),
        InstructionMix(vector=200, transcendental=16, conversions={"cvt": 4000}),
        InstructionMix(vector=200, transcendental=16, lds_reads={16: 2000}),
        InstructionMix(vector=200, transcendental=16, scratch=2000),  # spills
    ],
    ids=["vector", "transcendental", "conversion", "lds", "scratch"],
)
def test_every_pipe_can_be_the_limit(arch: ArchSpec, slower: InstructionMix) -> None:
    assert predict(WORK, resources(loop=slower), arch).us > 1.2 * predict(WORK, resources(), arch).us


def test_conversions_of_many_values_at_once_cost_no_less_than_their_values() -> None:
    def us(mnemonic: str, count: int) -> float:
        loop = InstructionMix(vector=200, transcendental=16, conversions={mnemonic: count})
        return predict(WORK, resources(loop=loop), GFX950).us

    assert us("v_cvt_f32_fp8", 1600) == us("v_cvt_scalef32_pk_f16_fp8", 800) == us("v_cvt_scale_pk8_f16_fp8", 200)


def unrolled(tiles: int, computed: int = 1) -> Resources:
    """A loop over some tiles a pass, each product of which is computed so many times."""
    loop = InstructionMix(
        async_copies={16: tiles * WORK.tile_bytes // (16 * 4 * GFX950.wave_size)},
        matrix_flops=tiles * computed * WORK.tile_flops_16bit // 4,
        vector=2000 * tiles,
        transcendental=160 * tiles,
    )
    return resources(loop=loop)


def test_an_unrolled_loop_counts_once_for_each_of_its_tiles() -> None:
    assert predict(WORK, unrolled(4), GFX950).us == pytest.approx(predict(WORK, unrolled(1), GFX950).us)


def test_products_that_several_waves_compute_alike_cost_as_often() -> None:
    assert predict(WORK, unrolled(1, computed=40), GFX950).us > predict(WORK, unrolled(1), GFX950).us


def test_the_terms_add_up_to_the_time() -> None:
    prediction = predict(work_of(FP8, (1, 4, 65536), NUM_SEGMENTS=16), resources(), GFX950)
    terms = prediction.terms
    parts = terms["launch"] + max(terms["loop"], terms["memory"]) + terms["prologue"] + terms["reduce"]
    assert prediction.us == pytest.approx(parts)
    assert terms["reduce"] > 0
