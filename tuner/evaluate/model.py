"""Predicted latency of a configuration: from its work, its compiled resources and the architecture's numbers.

Each term is a small function with its formula. The structure is that of a bulk-synchronous GPU: programs fill the
device in waves; within a wave the resident programs of a unit share its pipes and its part of the memory bandwidth,
and each is also bound by its own chain of dependent steps. docs/model.md compares predictions with measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..arch import ArchSpec
from ..kernels import Work
from .resources import InstructionMix, Resources

PIPE_EFFICIENCY = 0.4
"""Share of a pipe's peak that dependent, interleaved instructions reach. Fitted on 686 timings on an H200."""

WAIT_CLOCKS = 190.0
"""Clocks a tile waits for what cannot overlap in one program: matrix results, row maxima, barriers. Same fit."""

PROLOGUE_LATENCIES = 3.0  # lengths, then the page table, then keys: loads that wait for each other
REDUCE_LATENCIES = 2.0  # partials, then the store that ends the kernel


@dataclass(frozen=True)
class Prediction:
    """Predicted time of one call in microseconds, and the terms that it was made of, in microseconds."""

    us: float
    terms: Mapping[str, float]
    occupancy: int  # programs resident per unit


def predict(work: Work, resources: Resources, arch: ArchSpec) -> Prediction:
    """Predict one call: the attention kernel and, when split, its reduce.

    ``resources`` are those of the attention kernel, compiled or estimated. Returns an infinite time when no program
    fits a unit.
    """
    occupancy = arch.programs_per_unit(resources.num_warps, resources.registers, resources.lds_bytes)
    if not occupancy:
        return Prediction(float("inf"), {}, 0)
    resident = min(occupancy, -(-work.programs // arch.compute_units))
    chain = tile_chain_seconds(work, resources, arch)
    pipes = tile_pipe_seconds(work, resources, arch)
    fetch = tile_fetch_seconds(work, arch)
    tile = max(chain, resident * pipes, resident * fetch)
    loop = scheduled_tiles(work, arch, resident) * tile
    # Without a pipeline the first tile's latency is already in the chain of every tile.
    latencies = PROLOGUE_LATENCIES if work.pipelined else PROLOGUE_LATENCIES - 1
    prologue = -(-work.programs // (arch.compute_units * resident)) * latencies * arch.memory_latency
    memory = memory_seconds(work, arch)
    reduce = reduce_seconds(work, arch)
    total = arch.launch_seconds + max(loop, memory) + prologue + reduce
    terms = {
        "launch": arch.launch_seconds,
        "loop": loop,
        "memory": memory,
        "prologue": prologue,
        "reduce": reduce,
        "tile_chain": chain,
        "tile_pipes": pipes,
        "tile_fetch": fetch,
    }
    return Prediction(total * 1e6, {name: value * 1e6 for name, value in terms.items()}, occupancy)


def tiles_per_iteration(work: Work, resources: Resources, arch: ArchSpec) -> int:
    """Source tiles that one pass of the machine loop covers: the bytes that it loads over a tile's.

    Matrix instructions would not tell, since waves of a small tile may compute the same product several times.
    """
    moved = (resources.loop.global_loads, resources.loop.async_copies)
    loaded = sum(width * count for kinds in moved for width, count in kinds.items())
    loaded *= resources.num_warps * arch.wave_size
    return max(round(loaded / work.tile_bytes), 1)


def matrix_seconds(work: Work, resources: Resources, arch: ArchSpec) -> float:
    """Matrix time of one tile on a unit whose SIMDs are all busy: flops over rate, per operand width.

    Products that several waves compute alike count as often as they are issued.
    """
    clocks = work.tile_flops_16bit / arch.matrix_flops_16bit + work.tile_flops_8bit / arch.matrix_flops_8bit
    issued = resources.loop.matrix_flops * resources.num_warps / tiles_per_iteration(work, resources, arch)
    redundancy = max(issued / (work.tile_flops_16bit + work.tile_flops_8bit), 1.0)
    return clocks * redundancy / arch.clock_hz


def instruction_seconds(mix: InstructionMix, num_warps: int, arch: ArchSpec) -> dict[str, float]:
    """Seconds that one pass of a loop keeps each of a unit's other pipes busy.

    Lanes times instructions over the pipe's lanes per clock; LDS in bytes.
    """
    lanes = num_warps * arch.wave_size

    def lds(moved: Mapping[int, int]) -> int:
        return sum(width * count for width, count in moved.items())

    converted = sum(count * _elements(name) for name, count in mix.conversions.items())
    clocks = {
        "vector": mix.vector * lanes / arch.vector_lanes,
        "transcendental": mix.transcendental * lanes / arch.transcendental_lanes,
        "conversion": converted * lanes / arch.conversion_lanes,
        "lds": (lds(mix.lds_reads) + lds(mix.lds_writes)) * lanes / arch.lds_bytes_per_clock,
        # AMD's scratch instructions move up to 16 bytes a lane, NVIDIA's mostly 4; a vector cache returns 64 per clock.
        "scratch": mix.scratch * (16 if arch.backend == "hip" else 4) * lanes / 64,
    }
    return {name: value / (arch.clock_hz * PIPE_EFFICIENCY) for name, value in clocks.items()}


def _elements(mnemonic: str) -> int:
    """Values that one lane converts in one instruction, from its name: ``pk8``, ``pk``, ``f16x2``."""
    text = mnemonic.lower()
    if "pk8" in text:
        return 8
    return 2 if "pk" in text or "x2" in text or "f2fp" in text else 1


def tile_pipe_seconds(work: Work, resources: Resources, arch: ArchSpec) -> float:
    """Seconds per tile and program of the busiest pipe of a unit, when other programs fill the gaps."""
    per_tile = 1.0 / tiles_per_iteration(work, resources, arch)
    others = instruction_seconds(resources.loop, resources.num_warps, arch)
    converted = others.pop("conversion") + others.pop("vector")  # both issue as vector instructions
    return max(
        matrix_seconds(work, resources, arch), converted * per_tile, *(value * per_tile for value in others.values())
    )


def tile_chain_seconds(work: Work, resources: Resources, arch: ArchSpec) -> float:
    """Seconds per tile of one program on its own: its pipes one after the other, and its waits.

    A program of fewer waves than the unit has SIMDs reaches only their share of the pipes. Loads are hidden behind
    the tiles in flight: with a pipeline of ``n`` tiles a latency is spread over ``n`` of them.
    """
    share = min(resources.num_warps / arch.simds_per_unit, 1.0)
    per_tile = 1.0 / tiles_per_iteration(work, resources, arch)
    others = sum(instruction_seconds(resources.loop, resources.num_warps, arch).values()) * per_tile
    waits = WAIT_CLOCKS / arch.clock_hz
    compute = (matrix_seconds(work, resources, arch) + others) / share + waits
    in_flight = tiles_in_flight(work, resources)
    if not in_flight:
        return compute + arch.memory_latency
    return max(compute, arch.memory_latency / in_flight)


def tiles_in_flight(work: Work, resources: Resources) -> float:
    """Tiles of K and V that the compiled pipeline holds in LDS ahead of their use: LDS over a tile's bytes."""
    return max(resources.lds_bytes / work.tile_bytes, 1.0) if work.pipelined else 0.0


def tile_fetch_seconds(work: Work, arch: ArchSpec) -> float:
    """Seconds per tile of memory time on a unit: its bytes over the unit's share of the device's bandwidth."""
    active = min(arch.compute_units, work.programs)
    reread = work.total_tiles * work.tile_bytes / max(work.kv_bytes, 1)
    bandwidth = arch.bandwidth if reread < 1.5 else arch.cache_bandwidth
    return work.tile_bytes * active / bandwidth


def scheduled_tiles(work: Work, arch: ArchSpec, resident: int) -> float:
    """Tiles that the busiest slot works through, one after the other.

    Programs of equal length run in whole waves. Programs of unequal length are dealt as slots fall free, which evens
    them out, so that only the longest program bounds from below.
    """
    slots = arch.compute_units * resident
    waves = -(-work.programs // slots)
    equal = work.total_tiles >= 0.8 * work.programs * work.tiles_per_program
    if equal:
        return float(waves * work.tiles_per_program)
    return max(1.05 * work.total_tiles / slots, float(work.tiles_per_program))


def memory_seconds(work: Work, arch: ArchSpec) -> float:
    """Least time for the bytes: the cache read once from memory, the rest from the last-level cache."""
    reread = max(work.total_tiles * work.tile_bytes - work.kv_bytes, 0)
    return (work.kv_bytes + work.query_bytes) / arch.bandwidth + (reread + work.partial_bytes) / arch.cache_bandwidth


def reduce_seconds(work: Work, arch: ArchSpec) -> float:
    """Time of the reduce: a launch, its dependent loads, and the partials read back, which are still in cache."""
    if not work.reduce_programs:
        return 0.0
    rounds = -(-work.reduce_programs // (arch.compute_units * 8))
    return (
        arch.launch_seconds
        + rounds * REDUCE_LATENCIES * arch.memory_latency * 0.5
        + work.partial_bytes / arch.cache_bandwidth
    )
