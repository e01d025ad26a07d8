"""Architecture records: occupancy as the hardware's allocators give it, and names by any spelling."""

from __future__ import annotations

import pytest

from attn_tune.arch import ARCHS, ArchSpec, canonical_arch, find_arch, get_arch

# The most registers that still let this many waves share a SIMD, as LLVM's occupancy tables have it.
BREAKPOINTS = {
    "gfx950": {64: 8, 72: 7, 80: 6, 96: 5, 128: 4, 168: 3, 256: 2, 512: 1},
    "gfx942": {64: 8, 72: 7, 80: 6, 96: 5, 128: 4, 168: 3, 256: 2, 512: 1},
    "gfx1250": {64: 16, 80: 12, 96: 10, 112: 9, 128: 8, 144: 7, 160: 6, 192: 5, 256: 4, 336: 3, 512: 2, 1024: 1},
    "sm_90": {32: 16, 40: 12, 48: 10, 56: 9, 64: 8, 72: 7, 80: 6, 96: 5, 128: 4, 168: 3, 255: 2},
}


@pytest.mark.parametrize(
    ("arch", "registers", "waves"),
    [(arch, registers, waves) for arch, points in BREAKPOINTS.items() for registers, waves in points.items()],
)
def test_registers_limit_waves_at_the_documented_breakpoints(arch: str, registers: int, waves: int) -> None:
    spec = get_arch(arch)
    assert spec.waves_per_simd(registers) == waves
    if registers < spec.max_registers:
        assert spec.waves_per_simd(registers + 1) < waves


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_few_registers_leave_all_wave_slots_and_too_many_leave_one(arch: ArchSpec) -> None:
    assert arch.waves_per_simd(0) == arch.waves_per_simd(arch.register_granule) == arch.max_waves_per_simd
    assert arch.waves_per_simd(10_000) == 1


@pytest.mark.parametrize(
    ("arch", "num_warps", "lds_bytes", "programs"),
    [
        ("gfx950", 2, 16 << 10, 9),  # 13 granules of 1280 bytes: 16640
        ("gfx950", 2, 32 << 10, 4),
        ("gfx950", 4, 40 << 10, 4),
        ("gfx950", 4, 80 << 10, 2),
        ("gfx950", 4, (80 << 10) + 1, 1),
        ("gfx950", 4, 163840, 1),
        ("gfx950", 4, 163841, 0),
        ("gfx1250", 4, 32 << 10, 10),
        ("gfx1250", 4, 64 << 10, 5),
        ("gfx1250", 4, 327680, 1),
        ("gfx1250", 4, 327681, 0),
        ("sm_90", 4, 75 << 10, 3),
        ("sm_90", 4, 76 << 10, 2),  # the system takes 1 KiB of each program
        ("sm_90", 4, 232448, 1),
        ("sm_90", 4, 232449, 0),
        ("gfx942", 4, 65537, 0),
    ],
)
def test_lds_limits_programs(arch: str, num_warps: int, lds_bytes: int, programs: int) -> None:
    assert get_arch(arch).programs_per_unit(num_warps, 32, lds_bytes) == programs


@pytest.mark.parametrize(
    ("arch", "num_warps", "registers", "programs"),
    [
        ("gfx950", 4, 128, 4),
        ("gfx950", 4, 129, 3),
        ("gfx950", 2, 256, 4),
        ("gfx950", 2, 257, 2),
        ("gfx1250", 8, 256, 2),
        ("sm_90", 8, 128, 2),
        ("sm_90", 8, 255, 1),
        ("gfx950", 8, 512, 1),  # more waves than fit at once still run: a launch is never refused for registers
    ],
)
def test_registers_limit_programs(arch: str, num_warps: int, registers: int, programs: int) -> None:
    assert get_arch(arch).programs_per_unit(num_warps, registers, 1024) == programs


def test_program_slots_limit_small_programs() -> None:
    assert get_arch("gfx950").programs_per_unit(1, 32, 0) == 16
    assert get_arch("sm_90").programs_per_unit(1, 16, 0) == 32


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gfx950", "gfx950"),
        ("GFX950", "gfx950"),
        (" gfx950:sramecc+:xnack- ", "gfx950"),
        ("AMD Instinct MI355X", "gfx950"),
        ("MI350X", "gfx950"),
        ("AMD Instinct MI300X", "gfx942"),
        ("mi455x", "gfx1250"),
        ("NVIDIA H200", "sm_90"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("sm90", "sm_90"),
        ("sm_90a", "sm_90"),
        ("sm_100", "sm_100"),
        ("NVIDIA B200", "sm_100"),
    ],
)
def test_names_by_any_spelling_lead_to_the_record(text: str, name: str) -> None:
    assert canonical_arch(text) == name
    assert get_arch(text) is find_arch(text) is ARCHS[name]


def test_an_alias_belongs_to_one_arch() -> None:
    aliases = [alias for spec in ARCHS.values() for alias in spec.aliases]
    assert len(aliases) == len(set(aliases))
    assert all(alias == alias.lower() for alias in aliases)


def test_an_unknown_name_keeps_its_text_and_lists_the_known_ones() -> None:
    assert canonical_arch("Radeon Pro W9000") == "radeon pro w9000"
    assert canonical_arch("sm_121a") == "sm_121"
    assert find_arch("gfx90a") is None
    with pytest.raises(ValueError, match=r"'gfx90a' is unknown; known archs: gfx942, gfx950"):
        get_arch("gfx90a")
