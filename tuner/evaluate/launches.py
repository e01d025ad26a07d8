"""The launches of one call, compiled for an arch as its runtime would compile them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..arch import ArchSpec
from ..kernels import Config, get_kernel
from ..kernels.protocol import Launch
from ..problem import AttentionProblem
from .compile import CompiledObject, compile_specialization, load_compiler
from .specialize import Specialization, specialize
from .workers import run_tasks


@dataclass(frozen=True)
class CompiledLaunch:
    """One launch of a call. ``launch`` has meta tensors of the real shapes; ``metadata`` is Triton's of the object."""

    launch: Launch
    specialization: Specialization
    object: CompiledObject
    metadata: Mapping[str, Any]


def compile_launches(
    problem: AttentionProblem, route: str, config: Config, arch: ArchSpec, *, time_limit: float = 300.0
) -> list[CompiledLaunch]:
    """Compile every launch of a call in killable workers; ``time_limit`` is in seconds per launch.

    The code does not rely on the cache's size: it is compiled as for 4 GiB or more. What it does rely on (alignment,
    other tensors under 2 GiB) is what holds for the problem.

    Raises:
        ValueError: the route is unknown, does not compute the family, or makes nothing that compiles of the config.
    """
    from ..kernels.inputs import empty_inputs, meta_inputs

    kernel = get_kernel(route)
    reason = kernel.supports(problem.family, arch)
    if reason is not None:
        raise ValueError(reason)
    complete = kernel.complete(config, arch)
    try:
        launches = kernel.plan(empty_inputs(problem, "meta"), complete)
        specializations = [specialize(launch, arch) for launch in kernel.plan(meta_inputs(problem), complete)]
    except Exception as error:  # the plan is the kernel author's code
        raise ValueError(f"{route} makes no launch of {complete}: {type(error).__name__}: {error}") from error
    indexes = range(len(launches))
    objects: dict[int, tuple[CompiledObject, Mapping[str, Any]]] = {}
    tasks = ((index, specializations[index]) for index in indexes)
    for (index, _), outcome in run_tasks(
        _compile, tasks, workers=len(launches), time_limit=time_limit, initializer=load_compiler
    ):
        if outcome.value is None:
            raise ValueError(
                f"{launches[index].kernel} does not compile for {arch.name} with {complete}: "
                f"{outcome.status}: {outcome.message}"
            )
        objects[index] = outcome.value
    return [CompiledLaunch(launches[index], specializations[index], *objects[index]) for index in indexes]


def _compile(task: tuple[int, Specialization]) -> tuple[CompiledObject, dict[str, Any]]:
    """The object and Triton's metadata of it, which its compilation hook shows whether or not the cache had it."""
    from triton import knobs

    found: dict[str, Any] = {}

    def listen(*, metadata: Mapping[str, Any], **_: Any) -> None:
        found.update(metadata)

    with knobs.compilation.scope():
        knobs.compilation.listener = listen
        return compile_specialization(task[1]), found
