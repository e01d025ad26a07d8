"""From machine instructions to an :class:`InstructionMix`, by rules that each instruction set supplies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from .control_flow import Instruction
from .resources import InstructionMix

BY_WIDTH = ("global_loads", "global_stores", "async_copies", "lds_reads", "lds_writes")
BY_NAME = ("matrix", "conversions")


def rules(*pairs: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Compile (field of InstructionMix, pattern) pairs. Patterns match from the start of ``"opcode operands"``.

    Raises:
        ValueError: a field does not exist.
    """
    known = {item.name for item in fields(InstructionMix)}
    for name, _ in pairs:
        if name not in known:
            raise ValueError(f"InstructionMix has no field {name!r}")
    return tuple((name, re.compile(pattern)) for name, pattern in pairs)


@dataclass(frozen=True)
class InstructionSet:
    """How to read one instruction set: the first rule that matches decides, and ``other`` takes the rest."""

    rules: Sequence[tuple[str, re.Pattern[str]]]
    width: Callable[[str], int]  # opcode -> bytes per lane
    matrix_flops: Callable[[str], int]  # opcode -> flops per wave
    name: Callable[[str], str]  # opcode -> mnemonic to count under

    def field_of(self, instruction: Instruction) -> str:
        """The field of InstructionMix that counts an instruction."""
        text = f"{instruction.opcode} {instruction.operands}"
        return next((name for name, pattern in self.rules if pattern.match(text)), "other")

    def mix(self, program: Iterable[Instruction]) -> InstructionMix:
        """Count the instructions of a piece of code."""
        totals: Counter[str] = Counter()
        counts: dict[str, Counter[str | int]] = {}
        for instruction in program:
            name, opcode = self.field_of(instruction), instruction.opcode
            if name in BY_WIDTH:
                counts.setdefault(name, Counter())[self.width(opcode)] += 1
            elif name in BY_NAME:
                counts.setdefault(name, Counter())[self.name(opcode)] += 1
            else:
                totals[name] += 1
            if name == "matrix":
                totals["matrix_flops"] += self.matrix_flops(opcode)
        return InstructionMix(**totals, **{name: dict(counter) for name, counter in counts.items()})  # type: ignore[arg-type]
