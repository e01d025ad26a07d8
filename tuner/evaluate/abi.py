"""How a compiled kernel is called: its arguments in order, where each lies in the argument buffer, and the hidden ones.

Triton passes the arguments of a kernel that are neither constants nor folded, then two pointers of its own (the
launchers in ``triton/backends/*/driver.py`` and ``driver.c``, the same from Triton 3.6 to 3.9): scratch memory, and
memory for its profiler. Both vendors lay arguments out as C lays out a struct. The HIP runtime adds arguments of its
own behind them where the code asks for some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ..kernels.protocol import Launch
from .specialize import Specialization, load_kernel

CONSTEXPR = "constexpr"
SCRATCH_POINTERS = ("global_scratch_ptr", "profile_scratch_ptr")

_SIZES = {"1": 1, "8": 1, "16": 2, "32": 4, "64": 8}
_SCALAR = re.compile(r"(?:i|u|fp|bf|f)(1|8|16|32|64)")


@dataclass(frozen=True)
class Argument:
    """One argument. ``offset`` and ``size`` are bytes in the argument buffer; None when it is not passed.

    ``type`` is Triton's (``*bf16``, ``i32``), or ``constexpr`` for what the compiler folded: constants, None, and
    integers equal to 1. ``hidden`` is empty for an argument of the kernel's source, ``triton`` for a pointer that
    Triton's launcher adds, ``runtime`` for what the HIP runtime fills in. ``attributes`` are what the compiled code
    relies on: ``tt.divisibility`` (of an address in bytes, or of a value) and ``tt.pointer_range`` 32 (under 2 GiB).
    """

    name: str
    type: str
    value: Any
    attributes: Mapping[str, int]
    offset: int | None = None
    size: int | None = None
    hidden: str = ""

    @property
    def passed(self) -> bool:
        """Whether the caller puts it into the argument buffer."""
        return self.offset is not None and self.hidden != "runtime"


def kernel_arguments(launch: Launch, specialization: Specialization, asm: Mapping[str, str]) -> list[Argument]:
    """Every argument of a launch in the order of the kernel's parameters, then the hidden ones.

    Args:
        launch: the real one; ``specialization`` may come from one with larger tensors.
        asm: the texts of the compiled object, which the layout is checked against.

    Raises:
        ValueError: an argument has a type with no fixed layout, or the object's own record differs.
    """
    values = {**launch.arguments, **launch.constants}
    end = 0
    arguments: list[Argument] = []
    for index, parameter in enumerate(load_kernel(launch.kernel).params):
        name, kind = parameter.name, specialization.signature[parameter.name]
        value = values.get(name, parameter.default)
        attributes = dict(specialization.attributes.get((index,), ()))
        if kind == CONSTEXPR:
            arguments.append(Argument(name, kind, value, attributes))
            continue
        size = type_size(kind, name)
        offset = -(-end // size) * size
        arguments.append(Argument(name, kind, value, attributes, offset, size))
        end = offset + size
    for name in SCRATCH_POINTERS:
        end = -(-end // 8) * 8
        arguments.append(Argument(name, "*i8", None, {}, end, 8, "triton"))
        end += 8
    return [*arguments, *_checked(arguments, asm, launch.kernel)]


def buffer_bytes(arguments: Iterable[Argument]) -> int:
    """The size of the buffer that the caller fills: up to the last argument that is not the runtime's."""
    return max(item.offset + item.size for item in arguments if item.passed)  # type: ignore[operator]


def type_size(kind: object, name: str) -> int:
    """Bytes of an argument of a Triton type. Raises ValueError, naming the argument, for tuples and descriptors."""
    if isinstance(kind, str) and kind.startswith("*"):
        return 8
    if not isinstance(kind, str) or not (match := _SCALAR.fullmatch(kind)):
        raise ValueError(f"argument {name} of type {kind!r} has no fixed layout")
    return _SIZES[match[1]]


def _checked(arguments: list[Argument], asm: Mapping[str, str], kernel: str) -> list[Argument]:
    """The runtime's arguments, after checking that the object agrees with the layout of the others."""
    ours = [(item.offset, item.size) for item in arguments if item.passed]
    recorded: list[tuple[int, int]]
    runtime: list[Argument] = []
    if "amdgcn" in asm:
        entries = [(item[".offset"], item[".size"], item[".value_kind"]) for item in amd_metadata(asm)[".args"]]
        recorded = [(offset, size) for offset, size, kind in entries if not kind.startswith("hidden_")]
        for offset, size, kind in entries:
            if kind.startswith("hidden_"):
                runtime.append(Argument(kind, "", None, {}, offset, size, "runtime"))
    else:
        recorded = list(ptx_parameters(asm["ptx"]))
    if recorded != ours:
        raise ValueError(f"kernel {kernel}: the object takes arguments at {recorded}, not at {ours}")
    return runtime


def amd_metadata(asm: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of the one kernel in an AMD object's assembly. Raises ValueError when there is none."""
    match = re.search(r"\.amdgpu_metadata\n(.*?)\.end_amdgpu_metadata", asm["amdgcn"], re.DOTALL)
    if match is None:
        raise ValueError("the assembly has no .amdgpu_metadata")
    kernel: dict[str, Any] = yaml.safe_load(match[1].replace("\t", " "))["amdhsa.kernels"][0]
    return kernel


def ptx_parameters(ptx: str) -> Iterable[tuple[int, int]]:
    """(offset, size) of the parameters of a PTX entry, which are aligned to their sizes."""
    end = 0
    entry = re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", ptx, re.DOTALL)
    for bits in re.findall(r"\.param \.[a-z](\d+)", entry[1] if entry else ""):
        size = int(bits) // 8
        offset = -(-end // size) * size
        yield offset, size
        end = offset + size
