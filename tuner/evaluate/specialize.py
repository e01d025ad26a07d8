"""What the compiler is asked for: the types and attributes that Triton's JIT would derive from a real launch.

The JIT compiles a kernel anew for each pattern of alignment, small tensors and special integers, and the pattern
decides the code: without known 16-byte alignment, loads become single bytes. So the JIT's own binder is used, with the
target's backend in place of the local device's; no driver is asked.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..arch import ArchSpec
from ..kernels.protocol import Launch

_OPTIONS_OF_OTHER_BACKEND = {
    "cuda": ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint", "llvm_fn_attrs", "wgp_cu_mode"),
    "hip": ("maxnreg", "minnreg", "ptx_options", "ptx_version"),
}


@dataclass(frozen=True)
class Specialization:
    """One compilation, as plain data: it can be sent to another process and its text identifies it.

    ``kernel`` is ``"module:function"`` and ``arch`` an arch name. ``signature`` maps parameters to Triton types,
    ``constants`` and ``attributes`` map paths into the parameters to constexpr values and attributes.
    """

    kernel: str
    arch: str
    signature: Mapping[str, Any]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        parts = (sorted(self.constants.items()), sorted(self.attributes.items()), sorted(self.options.items()))
        return f"{self.kernel} {self.arch} {list(self.signature.items())} {parts}"


def target_of(arch: ArchSpec) -> Any:
    """Triton's GPUTarget of an arch: ``("cuda", 90, 32)`` for sm_90, ``("hip", "gfx950", 64)`` for gfx950."""
    from triton.backends.compiler import GPUTarget

    name: str | int = int(arch.name.removeprefix("sm_")) if arch.backend == "cuda" else arch.name
    return GPUTarget(arch.backend, name, arch.wave_size)


def load_kernel(kernel: str) -> Any:
    """The ``@triton.jit`` or ``@gluon.jit`` function behind ``"module:function"``.

    Raises:
        ValueError: it cannot be imported or is no such function.
    """
    from triton.runtime.jit import JITFunction

    module, _, name = kernel.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"kernel {kernel!r} cannot be loaded: {error}") from error
    if not isinstance(function, JITFunction):
        hint = " (TRITON_INTERPRET is set)" if os.environ.get("TRITON_INTERPRET") else ""
        raise ValueError(f"kernel {kernel!r} is a {type(function).__name__}, not a Triton JIT function{hint}")
    return function


def specialize(launch: Launch, arch: ArchSpec) -> Specialization:
    """The compilation that a launch on an arch would cause. Tensors may be on the meta device.

    A tensor counts as aligned when its address is a multiple of 16, which a meta tensor's is, and as small (AMD's
    buffer instructions) when its storage is under 2 GiB. Options that only the other vendor knows are dropped.

    Raises:
        ValueError: the kernel cannot be loaded, or an argument or option is missing, unknown or of no known type.
    """
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    function = load_kernel(launch.kernel)
    arguments = {**launch.arguments, **launch.constants}
    dropped = _OPTIONS_OF_OTHER_BACKEND[arch.backend]
    options = {name: value for name, value in launch.options.items() if name not in dropped}
    parameters = {parameter.name: parameter for parameter in function.params}
    for name in arguments:
        if name not in parameters:
            raise ValueError(f"kernel {launch.kernel} has no parameter {name!r}")
    for name, parameter in parameters.items():
        if name not in arguments and not parameter.has_default:
            raise ValueError(f"kernel {launch.kernel} needs the argument {name!r}")
    backend = make_backend(target_of(arch))
    try:
        binder = create_function_from_signature(function.signature, function.params, backend)
        bound, kinds, _ = binder(**arguments, **options)
        full_options, signature, constants, attributes = function._pack_args(backend, options, bound, kinds, options)
    except (TypeError, KeyError, AssertionError) as error:
        raise ValueError(f"kernel {launch.kernel}: {error}") from error
    if full_options.arch.replace("sm", "sm_") != arch.name:
        raise ValueError(f"Triton would compile for {full_options.arch}, not {arch.name}: unset TRITON_OVERRIDE_ARCH")
    return Specialization(launch.kernel, arch.name, signature, constants, attributes, options)
