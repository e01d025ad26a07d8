"""Basic blocks and loops of a machine program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: its text without label, predicate and comment, and where control goes from it."""

    opcode: str
    operands: str = ""
    labels: tuple[str, ...] = ()  # names or addresses that branches use for it
    target: str | None = None  # label that it may branch to
    falls_through: bool = True


def natural_loops(program: Sequence[Instruction]) -> list[frozenset[int]]:
    """The natural loops of a program, each as the indices of its instructions, in the order of their first one.

    A natural loop belongs to an edge whose target dominates its source; loops with one header are merged (Aho, Sethi
    and Ullman, *Compilers*, 10.4). Dominance rather than a backward jump decides: code generators move cold blocks to
    the end of a function, from where they jump back, and rotate loops so that the header comes last.
    """
    blocks, successors = _basic_blocks(program)
    predecessors: dict[int, set[int]] = {}
    for block, nexts in enumerate(successors):
        for successor in nexts:
            predecessors.setdefault(successor, set()).add(block)
    dominators = _dominators(successors, predecessors)
    loops: dict[int, set[int]] = {}
    for block, own in dominators.items():
        for header in successors[block]:
            if header in own:
                body = loops.setdefault(header, {header})
                waiting = [block]
                while waiting:
                    current = waiting.pop()
                    if current not in body:
                        body.add(current)
                        waiting.extend(predecessors[current] & dominators.keys())
    found = [frozenset(index for block in body for index in blocks[block]) for body in loops.values()]
    return sorted(found, key=min)


def _basic_blocks(program: Sequence[Instruction]) -> tuple[list[range], list[list[int]]]:
    """Ranges of instruction indices, and for each block the blocks that may follow."""
    targets = {instruction.target for instruction in program if instruction.target is not None}
    starts = {0} if program else set()
    for index, instruction in enumerate(program):
        if targets.intersection(instruction.labels):
            starts.add(index)
        if (instruction.target is not None or not instruction.falls_through) and index + 1 < len(program):
            starts.add(index + 1)
    bounds = [*sorted(starts), len(program)]
    blocks = [range(start, end) for start, end in pairwise(bounds)]
    block_at = {label: number for number, block in enumerate(blocks) for label in program[block[0]].labels}
    successors: list[list[int]] = []
    for number, block in enumerate(blocks):
        last = program[block[-1]]
        following = [number + 1] if last.falls_through and number + 1 < len(blocks) else []
        if last.target in block_at:
            following.append(block_at[last.target])
        successors.append(following)
    return blocks, successors


def _dominators(successors: list[list[int]], predecessors: dict[int, set[int]]) -> dict[int, set[int]]:
    """The dominators of every block that the entry reaches, by iteration to the fixed point."""
    reached: list[int] = []
    waiting = [0] if successors else []
    seen = set(waiting)
    while waiting:
        block = waiting.pop()
        reached.append(block)
        fresh = [successor for successor in successors[block] if successor not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    dominators = {block: set(reached) for block in reached}
    if reached:
        dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in sorted(seen - {0}):
            sources = [dominators[source] for source in predecessors[block] & seen]
            new = {block} | set.intersection(*sources)
            if new != dominators[block]:
                dominators[block] = new
                changed = True
    return dominators
