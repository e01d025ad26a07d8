"""What a compiled kernel needs and does, as read from its object code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class InstructionMix:
    """Instructions that one wave issues in one pass over a piece of code, usually one iteration of a loop.

    Memory instructions are counted by width, the bytes that one lane moves; width 0 is a copy described in memory (TMA,
    TDM), which moves a whole tile. One iteration of the machine loop may cover several tiles of the source's loop, or
    part of one: dividing by ``matrix_flops`` makes mixes comparable.
    """

    matrix: Mapping[str, int] = field(default_factory=dict)  # by mnemonic
    matrix_flops: int = 0  # 2*M*N*K of the matrix instructions, per wave; 0 where the mnemonic has no shape (tcgen05)
    global_loads: Mapping[int, int] = field(default_factory=dict)  # to registers
    global_stores: Mapping[int, int] = field(default_factory=dict)
    async_copies: Mapping[int, int] = field(default_factory=dict)  # from global memory to LDS
    lds_reads: Mapping[int, int] = field(default_factory=dict)  # with the cross-lane moves that use LDS hardware
    lds_writes: Mapping[int, int] = field(default_factory=dict)
    conversions: Mapping[str, int] = field(default_factory=dict)  # between number formats, by mnemonic
    transcendental: int = 0
    vector: int = 0  # all other vector ALU
    scalar: int = 0  # scalar ALU, scalar and constant loads, branches
    scratch: int = 0  # spill loads and stores
    barriers: int = 0
    waits: int = 0  # counter waits, fences, nops
    other: int = 0

    @property
    def matrix_count(self) -> int:
        """Matrix instructions of all kinds."""
        return sum(self.matrix.values())

    @property
    def total(self) -> int:
        """All instructions."""
        values = (getattr(self, item.name) for item in fields(self) if item.name != "matrix_flops")
        return sum(value if isinstance(value, int) else sum(value.values()) for value in values)


@dataclass(frozen=True)
class Resources:
    """Resources of one compiled kernel.

    ``registers`` are vector registers per lane as the hardware allocates them, before rounding to its granule: on
    gfx942 and gfx950 architectural and accumulator registers together. ``spills`` are spilled registers per lane.
    ``loop`` is the hottest loop: the first innermost loop with matrix instructions in program order, since a masked
    copy of a loop follows the plain one. A kernel without such a loop has the mix of its whole code there.
    """

    registers: int
    spills: int
    scratch_bytes: int  # per lane
    lds_bytes: int  # per program
    num_warps: int
    loop: InstructionMix
    loops: tuple[InstructionMix, ...]  # every innermost loop of that kind
    tensor_memory_columns: int = 0  # sm_100

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; the inverse of :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Resources:
        """Resources from :meth:`to_dict`'s values, also after a trip through JSON.

        Raises:
            ValueError, TypeError, KeyError: a value is malformed, missing or unknown.
        """
        plain = {name: value for name, value in values.items() if name not in ("loop", "loops")}
        return cls(loop=_mix(values["loop"]), loops=tuple(_mix(loop) for loop in values["loops"]), **plain)


def _mix(values: Mapping[str, Any]) -> InstructionMix:
    def restore(name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or name in ("matrix", "conversions"):
            return value
        return {int(width): count for width, count in value.items()}

    return InstructionMix(**{name: restore(name, value) for name, value in values.items()})
