"""Run a plan's launches on the tensors' device."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from .inputs import AttentionInputs, Workspace
from .protocol import Config, Launch
from .registry import get_kernel


@cache
def kernel_function(reference: str) -> Any:
    """The Triton function behind ``"module:function"``."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def run_launch(launch: Launch) -> None:
    """Launch one Triton kernel on the current stream."""
    options = dict(launch.options)
    if "waves_per_eu" in options and launch.arguments["out_ptr"].device.type == "cuda":
        import torch

        if torch.version.hip is None:
            del options["waves_per_eu"]
    kernel_function(launch.kernel)[launch.grid](**launch.arguments, **launch.constants, **options)


def run(route: str, inputs: AttentionInputs, config: Config, workspace: Workspace | None = None) -> None:
    """Compute attention into ``inputs.out`` by the given route and configuration."""
    for launch in get_kernel(route).plan(inputs, config, workspace):
        run_launch(launch)
