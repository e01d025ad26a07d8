from __future__ import annotations

import pytest

from attn_tune.evaluate.control_flow import Instruction, natural_loops


def parse(text: str) -> list[Instruction]:
    """``label: opcode target`` per line; ``jump`` always goes, ``branch`` may, ``end`` ends."""
    program = []
    for line in text.strip().splitlines():
        label, _, rest = line.rpartition(":")
        opcode, _, target = rest.strip().partition(" ")
        labels = (label.strip(),) if label else ()
        program.append(Instruction(opcode, "", labels, target or None, opcode not in ("jump", "end")))
    return program


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        pytest.param("a\nbranch x\nx: b\nend", [], id="no loop"),
        pytest.param("a\nx: b\nc\nbranch x\nend", [{1, 2, 3}], id="one"),
        pytest.param("x: branch x\nend", [{0}], id="the entry itself"),
        pytest.param("a\nx: b\nbranch x\ny: c\nbranch y\nend", [{1, 2}, {3, 4}], id="two in a row"),
        pytest.param("x: a\ny: b\nbranch y\nbranch x\nend", [{0, 1, 2, 3}, {1, 2}], id="nested"),
        pytest.param("x: a\nbranch x\nb\nbranch x\nend", [{0, 1, 2, 3}], id="two edges to one header"),
        pytest.param(
            "a\njump cond\nbody: b\ncond: c\nbranch body\nend", [{2, 3, 4}], id="rotated, with the test at the bottom"
        ),
        pytest.param(
            "a\nbranch cold\nback: b\nend\ncold: c\njump back", [], id="a cold block that jumps back is no loop"
        ),
        pytest.param(
            "x: a\nbranch cold\nback: b\nbranch x\nend\ncold: c\njump back",
            [{0, 1, 2, 3, 5, 6}],
            id="a cold block of the loop, placed after the end",
        ),
        pytest.param("a\nend\nx: jump x", [], id="padding after the end is not reached"),
        pytest.param("", [], id="empty"),
    ],
)
def test_natural_loops(text: str, loops: list[set[int]]) -> None:
    assert [set(loop) for loop in natural_loops(parse(text))] == loops
