"""Registers, spills and the instructions of the inner loop, read from a compiled kernel's object code."""

from __future__ import annotations

from collections.abc import Mapping

from . import amdgcn, sass
from .control_flow import Instruction, natural_loops
from .instructions import InstructionSet
from .resources import InstructionMix, Resources


def read_resources(
    asm: Mapping[str, str], binary: bytes, function: str, *, lds_bytes: int, num_warps: int, tensor_memory: int = 0
) -> Resources:
    """The resources of ``function`` in what Triton compiled.

    AMD's figures come from the metadata at the end of the assembly, whose ``.vgpr_count`` already adds accumulator
    registers where they share the file. The assembly does not know Triton's LDS, which the launch allocates:
    ``lds_bytes`` is from Triton's metadata. NVIDIA's come from ``cuobjdump``; its spill count is the stack in
    registers, as Triton itself counts (cuFuncGetAttribute LOCAL_SIZE_BYTES / 4).

    Args:
        asm: the texts by stage; ``amdgcn`` decides between the two vendors.

    Raises:
        ValueError: the object has no such function.
        RuntimeError: cuobjdump cannot run.
    """
    if "amdgcn" in asm:
        text = asm["amdgcn"]
        registers, scratch = (amdgcn.metadata(text, name) for name in (".vgpr_count", ".private_segment_fixed_size"))
        spills = amdgcn.metadata(text, ".vgpr_spill_count")
        loop, loops = hot_loops(amdgcn.program(text, function), amdgcn.AMDGCN)
    else:
        text = sass.disassemble(binary)
        figures = sass.usage(text, function)
        registers, scratch = figures["REG"], figures["STACK"]
        spills = scratch // 4
        loop, loops = hot_loops(sass.program(text, function), sass.SASS)
    return Resources(registers, spills, scratch, lds_bytes, num_warps, loop, loops, tensor_memory)


def hot_loops(
    program: list[Instruction], instruction_set: InstructionSet
) -> tuple[InstructionMix, tuple[InstructionMix, ...]]:
    """The mix of the hottest loop and of all loops that may be it, as :class:`Resources` describes them."""
    matrix = {index for index, line in enumerate(program) if instruction_set.field_of(line) == "matrix"}
    loops = natural_loops(program)
    if matrix:
        loops = [loop for loop in loops if loop & matrix]
    innermost = [loop for loop in loops if not any(other < loop for other in loops)]
    mixes = tuple(instruction_set.mix(program[index] for index in sorted(loop)) for loop in innermost)
    return (mixes[0] if mixes else instruction_set.mix(program)), mixes
