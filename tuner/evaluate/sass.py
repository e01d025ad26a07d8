"""Reading NVIDIA machine code with the ``cuobjdump`` that Triton brings along."""

from __future__ import annotations

import re
import subprocess
import tempfile

from .control_flow import Instruction
from .instructions import InstructionSet, rules

_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_SHAPES = (
    (re.compile(r"[HIQO]GMMA(?:\.SP)?\.(\d+)x(\d+)x(\d+)"), 4),  # a warp group of four warps computes one
    (re.compile(r"[HIQODB]MMA\.(?:SP\.)?(16|8)(8)(\d+)"), 1),
)


def disassemble(cubin: bytes) -> str:
    """The resource usage and machine code of a cubin, as text.

    Raises:
        RuntimeError: cuobjdump is missing or refuses the object; the message says which.
    """
    from triton import knobs

    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(f"cuobjdump cannot run (TRITON_CUOBJDUMP_PATH): {error}") from error
    if done.returncode:
        raise RuntimeError(f"cuobjdump failed: {done.stderr.strip()[-200:]}")
    return done.stdout


def usage(text: str, function: str) -> dict[str, int]:
    """The ``REG``, ``STACK``, ``SHARED`` ... figures of a function.

    Raises:
        ValueError: the text has no such function.
    """
    match = re.search(rf"^\s*Function {re.escape(function)}:\s*\n(.*)$", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"the object has no function {function!r}")
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", match[1])}


def program(text: str, function: str) -> list[Instruction]:
    """The instructions of one function. Raises ValueError when the text has no such function."""
    match = re.search(rf"^\s*Function : {re.escape(function)}$(.*?)(?=^\s*Function : |\Z)", text, re.M | re.S)
    if match is None:
        raise ValueError(f"the object has no function {function!r}")
    found: list[Instruction] = []
    for address, predicate, opcode, operands in _INSTRUCTION.findall(match[1]):
        name = opcode.partition(".")[0]
        target = re.search(r"0x([0-9a-f]+)\s*$", operands) if name == "BRA" else None
        # A further operand of a branch is another predicate: BRA.U !UP0, 0x150.
        certain = not predicate and "," not in operands and opcode in ("BRA", "EXIT", "RET.REL.NODEC", "BRX", "JMP")
        labels = (f"{int(address, 16):x}",)
        found.append(
            Instruction(opcode, operands.strip(), labels, f"{int(target[1], 16):x}" if target else None, not certain)
        )
    return found


def _width(opcode: str) -> int:
    """Bytes per lane: ``LDG.E.128`` 16, ``LDS.U8`` 1, ``LDSM.16.M88.4`` 16 (four 8x8 matrices)."""
    parts = opcode.split(".")
    if parts[0] in ("LDSM", "STSM"):
        return 4 * int(parts[-1]) if parts[-1] in ("2", "4") else 4
    if parts[0].startswith(("UBLK", "UTMA")):
        return 0
    bits = next((int(part.lstrip("US")) for part in parts[1:] if re.fullmatch(r"[US]?(8|16|64|128|256)", part)), 32)
    return bits // 8


def _matrix_flops(opcode: str) -> int:
    for pattern, warps in _SHAPES:
        if match := pattern.match(opcode):
            m, n, k = (int(text) for text in match.groups())
            return 2 * m * n * k // warps
    return 0  # tcgen05: the shape is in a descriptor


SASS = InstructionSet(
    rules=rules(
        ("matrix", r"[HIQODB]G?MMA\b|UTC[HIQO]MMA"),
        ("async_copies", r"LDGSTS|UBLKCP|UTMALDG"),
        ("global_loads", r"LDG?\b"),
        ("global_stores", r"STG?\b|UTMASTG"),
        ("scratch", r"(LDL|STL)\b"),
        ("lds_reads", r"(LDS|LDSM|SHFL)\b"),
        ("lds_writes", r"(STS|STSM|ATOMS)\b"),
        ("transcendental", r"MUFU\b"),
        ("conversions", r"(F2FP?|I2FP?|F2I|I2I|F2IP|FRND)\b"),
        ("barriers", r"(BAR|SYNCS)\b"),
        (
            "waits",
            r"(DEPBAR|LDGDEPBAR|ARRIVES|WARPGROUP|WARPSYNC|MEMBAR|FENCE|NOP|NANOSLEEP|BSSY|BSYNC|UTCBAR|UTMACMDFLUSH)\b",
        ),
        ("other", r"(LDTM|STTM|UTC\w+|ATOMG?|RED|CCTL|BPT)\b"),  # tensor memory, atomics, traps
        ("scalar", r"(U[A-Z0-9]+|S2UR|R2UR|LDCU?|ULDC|BRA|BRX|EXIT|CALL|RET|ELECT|VOTEU)\b"),
        ("vector", r"[A-Z]"),
    ),
    width=_width,
    matrix_flops=_matrix_flops,
    name=str,
)
