"""What a kernel tells the tuner: the protocol that routes implement, and the records they exchange.

Nothing here imports torch or triton: the router asks ``supports`` at run time before either is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..arch import ArchSpec
from ..problem import AttentionFamily, AttentionProblem

if TYPE_CHECKING:
    from .inputs import AttentionInputs, Workspace

Config = Mapping[str, int]
"""A kernel's tuning parameters: BLOCK_M, TILE_SIZE, NUM_SEGMENTS, num_warps, num_stages, waves_per_eu, ..."""

COMPILE_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "maxnreg")
"""The entries of a config that go to the compiler rather than to the kernel."""


@dataclass(frozen=True)
class Launch:
    """One Triton launch, with real or meta tensors: the single source of what is compiled, launched and dumped.

    ``kernel`` is ``"module:function"``; ``arguments`` are the run-time arguments in the kernel's order (tensors, ints,
    floats, None), ``constants`` its constexpr arguments and ``options`` the compiler's.
    """

    kernel: str
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, int]


@dataclass(frozen=True)
class Work:
    """What one configuration does on one problem, for the performance model. Counts are per kernel call.

    A *tile* is one iteration of the loop over keys of one program: ``rows`` query rows against ``tile_size`` keys.
    """

    programs: int
    tiles_per_program: int  # of the longest program
    total_tiles: int
    rows: int  # BLOCK_M
    tile_size: int
    head_size: int  # padded to what the kernel computes on
    value_head_size: int
    tile_flops_16bit: int  # of matrix products, as issued: padding included
    tile_flops_8bit: int
    tile_converted: int  # elements converted from the cache's dtype
    tile_bytes: int  # K, V and scale bytes that one tile loads
    pipelined: bool  # tiles are loaded ahead of their use
    kv_bytes: int  # distinct K, V and scale bytes of the batch
    query_bytes: int  # query read and output written
    partial_bytes: int = 0  # partial results written, and read again by the reduce
    reduce_programs: int = 0
    reduce_segments: int = 0


class Kernel(Protocol):
    """A route: one way to compute paged attention. Third parties add theirs with :func:`register`."""

    name: str

    def supports(self, family: AttentionFamily, arch: ArchSpec) -> str | None:
        """None if this kernel computes the family on the arch, else the reason why not, naming the argument."""

    def complete(self, config: Config, arch: ArchSpec | None) -> dict[str, int]:
        """The config with the kernel's own parameters added where a rule or a hand-written table has none."""

    def space(self, family: AttentionFamily, arch: ArchSpec) -> Iterator[dict[str, int]]:
        """Every configuration worth considering, without NUM_SEGMENTS (which :meth:`segments` adds per problem)."""

    def segments(self, problem: AttentionProblem, config: Config, arch: ArchSpec, occupancy: int) -> Sequence[int]:
        """The NUM_SEGMENTS values worth considering for a problem; ``occupancy`` is programs resident per unit."""

    def work(self, problem: AttentionProblem, config: Config) -> Work:
        """Programs, tiles and bytes of a configuration."""

    def plan(self, inputs: AttentionInputs, config: Config, workspace: Workspace | None = None) -> list[Launch]:
        """The launches of one call. With meta tensors nothing is allocated, and the plan serves compiling only."""
