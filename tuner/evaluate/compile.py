"""Cross-compile a launch for any architecture, on a machine with any GPU or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..arch import ArchSpec, get_arch
from ..kernels.protocol import Launch
from .assembly import read_resources
from .resources import Resources
from .specialize import Specialization, load_kernel, specialize, target_of


@dataclass(frozen=True)
class CompiledObject:
    """A kernel compiled for ``target`` (Triton's GPUTarget).

    ``name`` is the symbol in ``binary`` (a hsaco or cubin); ``asm`` has the text of every stage, by Triton's names.
    """

    name: str
    target: Any
    num_warps: int
    lds_bytes: int
    asm: Mapping[str, str]
    binary: bytes
    resources: Resources


def compile_launch(launch: Launch, arch: ArchSpec) -> CompiledObject:
    """Compile what a launch on ``arch`` would run and read its resources. Triton's own cache is used.

    Raises:
        ValueError: the launch does not fit its kernel.
        Exception: whatever the compiler raises; it may also abort the process or not come back, so candidates belong
            into :func:`~attn_tune.evaluate.compile_many.compile_configs`.
    """
    return compile_specialization(specialize(launch, arch))


def compile_specialization(specialization: Specialization) -> CompiledObject:
    """Compile one specialization; see :func:`compile_launch`."""
    import triton
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    function = load_kernel(specialization.kernel)
    parts = (dict(specialization.signature), dict(specialization.constants), dict(specialization.attributes))
    source = (GluonASTSource if function.is_gluon() else ASTSource)(function, *parts)
    target = target_of(get_arch(specialization.arch))
    compiled = triton.compile(source, target=target, options=dict(specialization.options))
    metadata = compiled.metadata
    asm = {stage: text for stage, text in compiled.asm.items() if isinstance(text, str)}
    resources = read_resources(
        asm,
        compiled.kernel,
        metadata.name,
        lds_bytes=metadata.shared,
        num_warps=metadata.num_warps,
        tensor_memory=getattr(metadata, "tmem_size", None) or 0,
    )
    return CompiledObject(metadata.name, target, metadata.num_warps, metadata.shared, asm, compiled.kernel, resources)


def compile_resources(specialization: Specialization) -> Resources:
    """Only the resources: what a worker process sends back."""
    return compile_specialization(specialization).resources


def load_compiler() -> None:
    """Import Triton, so that a worker's first compilation does not pay for it."""
    import triton  # noqa: F401
