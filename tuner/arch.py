"""Hardware facts: one :class:`ArchSpec` per architecture, each number with its source.

Sources, by the short names used below:

- LLVM: ROCm/llvm-project, ``AMDGPUBaseInfo.cpp`` and ``SISchedule.td`` (occupancy rules, instruction passes)
- ROCM: AMD's "GPU hardware specifications" page, ROCm 7.13 preview
- RJ: ROCm/rocm-systems ``emulation/rocjitsu/configs`` (an emulator's description of the device, not silicon)
- ORIGAMI: the ``rocm_origami`` 0.0.3 sources (constants its authors fitted to microbenchmarks)
- TK: HipKittens' headers for CDNA4 and CDNA5
- NV: NVIDIA's H200 datasheet and CUDA programming guide (arithmetic throughput table, compute capability 9.0)
- H200: measured by this project on one H200
- FIT: a start value chosen to reproduce published kernel times (docs/model.md lists them); to be calibrated
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ArchSpec:
    """One GPU architecture as the tuner sees it. A *unit* is a compute unit, work-group processor or SM."""

    name: str
    backend: str  # Triton's backend: "hip" or "cuda"
    wave_size: int
    compute_units: int
    aliases: tuple[str, ...]  # marketing names, lower case, as drivers report them
    # Occupancy
    simds_per_unit: int
    max_waves_per_simd: int
    registers_per_lane: int  # vector registers that the waves of one SIMD share, per lane
    register_granule: int
    max_registers: int  # per thread; more spill
    lds_per_unit: int  # bytes
    lds_per_program: int  # bytes; a launch over it fails
    lds_granule: int  # bytes
    lds_reserved: int  # bytes that the system takes from each program
    max_programs_per_unit: int
    # Speed
    clock_hz: float
    bandwidth: float  # bytes/s that a streaming read reaches
    cache_bytes: int  # the last level of cache
    cache_bandwidth: float  # bytes/s
    memory_latency: float  # seconds, to DRAM while it is busy
    matrix_flops_16bit: int  # per clock per unit, dense
    matrix_flops_8bit: int
    vector_lanes: int  # fp32 operations per clock per unit
    transcendental_lanes: int  # exp2 per clock per unit
    conversion_lanes: int  # fp8 to 16-bit conversions per clock per unit, elements
    lds_bytes_per_clock: int  # per unit
    launch_seconds: float  # one kernel of a captured graph, empty
    fp8_matrix: bool  # e4m3 (OCP) operands in matrix instructions
    conversion_through_lds: bool = False  # a converted operand goes back to LDS before the matrix unit reads it

    def waves_per_simd(self, registers: int) -> int:
        """Waves that the registers allow on one SIMD.

        The rule is LLVM's ``getNumWavesPerEUWithNumVGPRs`` (AMDGPUBaseInfo.cpp); NVIDIA's is the same with the
        register file of one sub-core.
        """
        if registers < self.register_granule:
            return self.max_waves_per_simd
        allocated = -(-registers // self.register_granule) * self.register_granule
        return min(max(self.registers_per_lane // allocated, 1), self.max_waves_per_simd)

    def programs_per_unit(self, num_warps: int, registers: int, lds_bytes: int) -> int:
        """Programs of ``num_warps`` waves resident on one unit at once, limited by registers, LDS and slots.

        Returns 0 when a program needs more LDS than a launch may ask for.
        """
        if lds_bytes > self.lds_per_program:
            return 0
        by_registers = self.waves_per_simd(registers) * self.simds_per_unit // num_warps
        allocated = -(-(lds_bytes + self.lds_reserved) // self.lds_granule) * self.lds_granule
        by_lds = self.lds_per_unit // allocated if allocated else self.max_programs_per_unit
        return max(min(by_registers, by_lds, self.max_programs_per_unit), 1)


_GFX942 = ArchSpec(
    name="gfx942",
    backend="hip",
    wave_size=64,
    compute_units=304,  # ROCM: MI300X
    aliases=("amd instinct mi300x", "amd instinct mi325x", "mi300x", "mi325x"),
    simds_per_unit=4,
    max_waves_per_simd=8,  # LLVM
    registers_per_lane=512,  # LLVM
    register_granule=8,  # LLVM
    max_registers=512,
    lds_per_unit=65536,  # ROCM
    lds_per_program=65536,  # ROCM
    lds_granule=512,  # LLVM: 128 dwords
    lds_reserved=0,
    max_programs_per_unit=16,  # LLVM: barriers
    clock_hz=2.1e9,  # ROCM
    bandwidth=4.0e12,  # ORIGAMI
    cache_bytes=256 << 20,  # ROCM: MALL
    cache_bandwidth=8.5e12,  # ORIGAMI
    memory_latency=1.3e-6,  # FIT: as gfx950
    matrix_flops_16bit=2048,  # ROCM: 1307 TFLOP/s over 304 units at 2.1 GHz
    matrix_flops_8bit=4096,  # ROCM
    vector_lanes=64,  # LLVM: full rate
    transcendental_lanes=16,  # LLVM: quarter rate
    conversion_lanes=16,  # FIT: OCP e4m3 is emulated, since the hardware's e4m3 has another exponent bias
    lds_bytes_per_clock=128,  # ORIGAMI
    launch_seconds=2.5e-6,  # FIT
    fp8_matrix=False,
)

_GFX950 = ArchSpec(
    name="gfx950",
    backend="hip",
    wave_size=64,
    compute_units=256,  # ROCM
    aliases=("amd instinct mi350x", "amd instinct mi355x", "mi350x", "mi355x"),
    simds_per_unit=4,
    max_waves_per_simd=8,  # LLVM
    registers_per_lane=512,  # LLVM: architectural and accumulator registers together
    register_granule=8,  # LLVM
    max_registers=512,
    lds_per_unit=163840,  # ROCM; the code generator refuses one byte more
    lds_per_program=163840,
    lds_granule=1280,  # LLVM: 320 dwords
    lds_reserved=0,
    max_programs_per_unit=16,  # LLVM: barriers
    clock_hz=2.1e9,  # FIT: under load; ROCM peak 2.4 GHz (MI355X)
    bandwidth=6.7e12,  # rocm-systems#8480 measured 6.91 TB/s; tokenspeed#191 fits 6.7
    cache_bytes=256 << 20,  # ROCM: MALL
    cache_bandwidth=8.5e12,  # ORIGAMI
    memory_latency=1.3e-6,  # FIT: MI300X microbenchmarks report 0.35 to 0.8 idle; scaled as on sm_90
    matrix_flops_16bit=4096,  # ROCM: 2.5 PFLOP/s over 256 units at 2.4 GHz; LLVM: 16x16x32 in 16 clocks
    matrix_flops_8bit=8192,  # ROCM; LLVM: 16x16x128 f8f6f4 in 32 clocks
    vector_lanes=64,  # LLVM
    transcendental_lanes=16,  # LLVM: quarter rate
    conversion_lanes=64,  # FIT: v_cvt_scalef32_pk, two values a lane, at half rate
    lds_bytes_per_clock=128,  # ORIGAMI
    launch_seconds=2.7e-6,  # tokenspeed#191: 5.4 us for a split kernel and its reduce
    fp8_matrix=True,
)

_GFX1250 = ArchSpec(
    name="gfx1250",
    backend="hip",
    wave_size=32,
    compute_units=256,  # RJ; aiter#3703 reports the same
    aliases=("amd instinct mi455x", "mi455x"),
    simds_per_unit=4,  # LLVM: CU mode only
    max_waves_per_simd=16,  # LLVM
    registers_per_lane=1024,  # LLVM
    register_granule=16,  # LLVM
    max_registers=1024,
    lds_per_unit=327680,  # LLVM; the code generator refuses one byte more
    lds_per_program=327680,
    lds_granule=2048,  # LLVM: 512 dwords
    lds_reserved=0,
    max_programs_per_unit=16,  # LLVM: barriers
    clock_hz=2.3e9,  # FIT: under load; 2.4 GHz reproduces AMD's 20 PFLOP/s
    bandwidth=16e12,  # FIT: 0.82 of RJ's 19.6 TB/s; no measurement is published
    cache_bytes=192 << 20,  # RJ: L2
    cache_bandwidth=24e12,  # FIT
    memory_latency=1.3e-6,  # FIT: as gfx950
    matrix_flops_16bit=8192,  # LLVM: v_wmma 16x16x32 in 8 clocks
    matrix_flops_8bit=32768,  # LLVM, newer tree: 16x16x128 in 8 clocks
    vector_lanes=128,  # LLVM: SIMD32
    transcendental_lanes=32,  # LLVM: quarter rate
    conversion_lanes=128,  # FIT: v_cvt_scale_pk8, eight values a lane
    lds_bytes_per_clock=256,  # TK: one port
    launch_seconds=5.5e-6,  # tokenspeed#1123: 11 us for a split kernel and its reduce
    fp8_matrix=True,
)

_SM_90 = ArchSpec(
    name="sm_90",
    backend="cuda",
    wave_size=32,
    compute_units=132,  # H200
    aliases=("nvidia h200", "nvidia h100", "nvidia h100 80gb hbm3", "h200", "h100"),
    simds_per_unit=4,
    max_waves_per_simd=16,  # NV
    registers_per_lane=512,  # NV: 64 K registers per SM, four sub-cores of 32 lanes
    register_granule=8,  # NV
    max_registers=255,  # NV
    lds_per_unit=233472,  # NV: 228 KiB
    lds_per_program=232448,  # NV: 227 KiB
    lds_granule=128,  # NV
    lds_reserved=1024,  # NV
    max_programs_per_unit=32,  # NV
    clock_hz=1.75e9,  # FIT: under load; H200 reads 1.98 GHz boost
    bandwidth=4.27e12,  # H200: device copy, bytes read plus bytes written
    cache_bytes=50 << 20,  # NV
    cache_bandwidth=5.2e12,  # FIT
    memory_latency=1.25e-6,  # FIT; idle GH200 microbenchmarks report 690 clocks
    matrix_flops_16bit=3100,  # FIT: three quarters of NV's 989 TFLOP/s
    matrix_flops_8bit=6200,  # FIT: the same share
    vector_lanes=128,  # NV
    transcendental_lanes=12,  # FIT: NV says 16
    conversion_lanes=96,  # FIT: NV says 64 for conversions from 8-bit types
    lds_bytes_per_clock=128,  # NV
    launch_seconds=1.95e-6,  # FIT
    fp8_matrix=True,
    conversion_through_lds=True,
)

_SM_100 = replace(
    _SM_90,
    name="sm_100",
    compute_units=148,  # NVIDIA's B200 datasheet
    aliases=("nvidia b200", "b200"),
    bandwidth=7.2e12,  # FIT: 0.9 of the datasheet's 8 TB/s
    cache_bytes=126 << 20,  # NVIDIA's B200 datasheet
    cache_bandwidth=12e12,  # FIT
    memory_latency=1.2e-6,  # FIT: as sm_90, plus GB200's longer idle latency
    matrix_flops_16bit=8192,  # NVIDIA's B200 datasheet: 2.25 PFLOP/s
    matrix_flops_8bit=16384,
)

ARCHS: dict[str, ArchSpec] = {spec.name: spec for spec in (_GFX942, _GFX950, _GFX1250, _SM_90, _SM_100)}


def canonical_arch(name: str) -> str:
    """The arch name behind any spelling: ``"AMD Instinct MI355X"``, ``"gfx950:sramecc+:xnack-"``, ``"sm90"``.

    A name that no record knows comes back cleaned up but otherwise as it was, so that the answer can say so.
    """
    text = name.strip().lower().split(":")[0]
    match = re.fullmatch(r"sm_?(\d+)[af]?", text)
    if match:
        return f"sm_{match.group(1)}"
    for spec in ARCHS.values():
        if text in spec.aliases:
            return spec.name
    return text


def find_arch(name: str) -> ArchSpec | None:
    """The record of an arch under any of its names, or None when there is none."""
    return ARCHS.get(canonical_arch(name))


def get_arch(name: str) -> ArchSpec:
    """The record of an arch under any of its names.

    Raises:
        ValueError: no record knows the name; the message lists those that exist.
    """
    spec = find_arch(name)
    if spec is None:
        raise ValueError(f"arch {name!r} is unknown; known archs: {', '.join(ARCHS)}")
    return spec
