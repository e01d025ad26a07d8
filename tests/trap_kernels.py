"""A route whose configurations are traps for the compiler: some compile, the others hang, abort or are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from attn_tune.arch import ArchSpec
from attn_tune.kernels import Config, Work, get_kernel
from attn_tune.kernels.protocol import Launch
from attn_tune.problem import AttentionFamily, AttentionProblem

FAMILY = AttentionFamily(4, 1, 64, q_dtype="fp16")  # its dtypes do not agree, so that no other route computes it


@triton.jit
def sound_kernel(output):
    tl.store(output, tl.load(output) + 1.0)


@triton.jit
def hanging_kernel(output):
    for index in tl.static_range(1 << 40):
        tl.store(output + index, 1.0)


@triton.jit
def refused_kernel(output):
    tl.static_assert(False, "this size is not for me")


FUNCTIONS = {
    "ok": "trap_kernels:sound_kernel",
    "timeout": "trap_kernels:hanging_kernel",
    "crash": "aborting_kernels:aborting_kernel",
    "compile_error": "trap_kernels:refused_kernel",
}
"""A kernel for each status that compiling can have."""


@dataclass(frozen=True)
class TrapRoute:
    """A configuration for each of some statuses, in their order; ``TRAP`` is the index of its own."""

    traps: tuple[str, ...] = tuple(FUNCTIONS)
    name: str = "trap"

    def supports(self, family: AttentionFamily, arch: ArchSpec) -> str | None:
        return None if family == FAMILY else f"{self.name}: q_dtype is not mine"

    def complete(self, config: Config, arch: ArchSpec | None) -> dict[str, int]:
        return dict(config)

    def space(self, family: AttentionFamily, arch: ArchSpec) -> Iterator[dict[str, int]]:
        for index in range(len(self.traps)):
            yield {"BLOCK_M": 16, "TILE_SIZE": 32, "num_warps": 1, "num_stages": 1, "TRAP": index}

    def segments(self, problem: AttentionProblem, config: Config, arch: ArchSpec, occupancy: int) -> Sequence[int]:
        return (1,)

    def work(self, problem: AttentionProblem, config: Config) -> Work:
        return get_kernel("paged_2d").work(problem, config)

    def plan(self, inputs: Any, config: Config, workspace: Any = None) -> list[Launch]:
        function = FUNCTIONS[self.traps[config["TRAP"]]]
        return [Launch(function, (1, 1, 1), {"output": inputs.q}, {}, {"num_warps": 1, "enable_fp_fusion": True})]
