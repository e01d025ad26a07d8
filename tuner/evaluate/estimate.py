"""Resources guessed before compiling, good enough to choose which configurations to compile."""

from __future__ import annotations

from ..arch import ArchSpec
from ..kernels import Config, Work
from ..kernels.lds import lds_estimate
from ..problem import AttentionFamily
from .resources import InstructionMix, Resources

UNSEEN = ("waves_per_eu", "KEYS_FIRST")
"""Parameters that the estimate does not tell apart."""

_BASE_REGISTERS = 48  # addresses, masks, loop state
_VECTOR_PER_LOGIT = 9  # scale, mask, maximum, subtract, sum, convert
_ADDRESS_PER_LOAD = 6  # vector instructions for a 16-byte load's 64-bit address


def estimate_resources(work: Work, family: AttentionFamily, config: Config, arch: ArchSpec) -> Resources:
    """What compiling this configuration will probably need, per thread and per tile.

    Registers hold the accumulator, the logits (as numbers and as probabilities), and where the matrix unit reads
    operands from registers, the query and a slice of the converted tile.
    """
    num_warps = config["num_warps"]
    threads = num_warps * arch.wave_size
    accumulator = work.rows * work.value_head_size / threads
    logits = work.rows * work.tile_size / threads
    tile_elements = work.tile_size * (work.head_size + work.value_head_size)
    loads = work.tile_bytes / 16 / threads
    from_lds = arch.conversion_through_lds and work.rows >= 64 and num_warps >= 4
    operands = 0.0
    if not from_lds:  # every wave holds the query rows it multiplies, and its share of K and V
        operands = work.rows * work.head_size / 2 / min(threads, work.rows * 4) + tile_elements / 2 / threads
    needed = round(_BASE_REGISTERS + accumulator + 2 * logits + operands)
    registers = min(needed, arch.max_registers)
    spills = max(needed - arch.max_registers, 0)
    lds = lds_estimate(config, family, arch)
    loop = InstructionMix(
        transcendental=round(logits),
        vector=round(logits * _VECTOR_PER_LOGIT + accumulator + loads * _ADDRESS_PER_LOAD),
        conversions={"pk": round(work.tile_converted / threads / 2)},
        lds_reads={16: round(tile_elements * 2 / 16 / threads)},
        lds_writes={16: round(work.tile_converted * 2 / 16 / threads) if arch.conversion_through_lds else 0},
        scratch=2 * spills,
    )
    return Resources(registers, spills, 4 * spills, lds, num_warps, loop, (loop,))
