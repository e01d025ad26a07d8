"""What `attn-tune doctor` tries out in worker processes, where a broken install can do no harm."""

from __future__ import annotations

import importlib
import os
import tempfile

from .evaluate.compile import compile_specialization
from .evaluate.specialize import Specialization


def import_module(name: str) -> tuple[str, str]:
    """Import a package and return (version, what it was built for): ``("2.9.0", "ROCm 7.1")`` for a ROCm torch."""
    module = importlib.import_module(name)
    version = getattr(module, "version", None)
    builds = {"ROCm": getattr(version, "hip", None), "CUDA": getattr(version, "cuda", None)}
    built_for = next((f"{name} {value}" for name, value in builds.items() if value), "")
    return str(getattr(module, "__version__", "unknown")), built_for


def compile_for(arch: str) -> str:
    """Compile a small kernel for an arch, past any cache, and return the matrix instructions that it got, if any.

    Raises:
        Exception: whatever the compiler raises.
    """
    aligned = [["tt.divisibility", 16]]
    pointers = {"a_ptr": "*bf16", "b_ptr": "*bf16", "out_ptr": "*fp32"}
    specialization = Specialization(
        kernel=f"{__package__}.probe_kernel:multiply",
        arch=arch,
        signature={**pointers, "BLOCK": "constexpr"},
        constants={(3,): 32},
        attributes={(place,): aligned for place in range(len(pointers))},
        options={"num_warps": 4},
    )
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        compiled = compile_specialization(specialization)
    return ", ".join(compiled.resources.loop.matrix)
