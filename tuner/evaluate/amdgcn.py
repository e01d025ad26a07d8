"""Reading AMD GPU assembly text, as Triton keeps it in ``asm["amdgcn"]``."""

from __future__ import annotations

import re

from .control_flow import Instruction
from .instructions import InstructionSet, rules

_LABEL = re.compile(r"(\.LBB\w+):")
_INSTRUCTION = re.compile(r"\s+([a-z]\w+)(?:\s+(.*))?$")
_ENCODING = re.compile(r"(_e32|_e64|_sdwa|_dpp8|_dpp|_vop3)+$")
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)(?:_?(\d+)b_)?")
_WIDTH = re.compile(r"_(?:dword(?:x(\d))?|[bui](\d+)|([us])(byte|short)|short)(?![\da-z])")


def program(text: str, function: str) -> list[Instruction]:
    """The instructions of one function.

    Raises:
        ValueError: the text has no such function.
    """
    match = re.search(rf"^{re.escape(function)}:.*?(?=^\.Lfunc_end)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"the assembly has no function {function!r}")
    found: list[Instruction] = []
    labels: list[str] = []
    for line in match[0].splitlines()[1:]:
        if label := _LABEL.match(line):
            labels.append(label[1])
        elif instruction := _INSTRUCTION.match(line.partition(";")[0].rstrip()):
            opcode, operands = instruction[1], instruction[2] or ""
            jumps = opcode == "s_branch" or opcode.startswith("s_cbranch")
            ends = opcode in ("s_branch", "s_endpgm", "s_setpc_b64")
            found.append(Instruction(opcode, operands, tuple(labels), operands if jumps else None, not ends))
            labels.clear()
    return found


def metadata(text: str, name: str) -> int:
    """An integer of the kernel's metadata, such as ``.vgpr_count``.

    Raises:
        ValueError: it is not there.
    """
    match = re.search(rf"^[\s-]*{re.escape(name)}:\s+(\d+)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"the assembly has no {name}")
    return int(match[1])


def _mnemonic(opcode: str) -> str:
    return _ENCODING.sub("", opcode)


def _width(opcode: str) -> int:
    """Bytes per lane: ``buffer_load_dwordx4`` 16, ``ds_read2_b64`` 16, ``global_load_d16_hi_u8`` 1."""
    match = _WIDTH.search(opcode)
    if match is None:
        return 0 if opcode.startswith("tensor_") else 4
    count, bits, _, size = match.groups()
    if bits:
        width = int(bits) // 8
    elif "dword" in match[0]:
        width = 4 * int(count or 1)
    else:
        width = 1 if size == "byte" else 2
    return 2 * width if re.search(r"(read|write)2|2addr", opcode) else width


def _matrix_flops(opcode: str) -> int:
    """2*M*N*K, times the number of independent blocks: ``v_mfma_f32_4x4x4_16b_f16`` computes sixteen."""
    match = _SHAPE.search(opcode)
    if match is None:
        return 0
    m, n, k, blocks = (int(text or 1) for text in match.groups())
    return 2 * m * n * k * blocks


AMDGCN = InstructionSet(
    rules=rules(
        ("matrix", r"v_(s?mfmac?|s?wmma\w*?)_"),
        ("async_copies", r"\w+_load_(async_to_)?lds_|tensor_load_to_lds|(buffer|global)_load_.*\blds\b"),
        ("global_loads", r"(buffer|global|flat|cluster)_load_"),
        ("global_stores", r"(buffer|global|flat)_store_"),
        ("scratch", r"scratch_(load|store)_"),
        ("lds_reads", r"ds_(read|load|bpermute|permute|swizzle)"),
        ("lds_writes", r"ds_(write|store)"),
        ("transcendental", r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos|tanh)_"),
        ("conversions", r"v_cvt_"),
        ("barriers", r"s_barrier(_wait)? "),
        ("waits", r"s_(wait|nop|sleep|delay_alu|barrier|clause)|v_nop"),
        ("vector", r"v_"),
        ("scalar", r"s_"),
    ),
    width=_width,
    matrix_flops=_matrix_flops,
    name=_mnemonic,
)
