"""Properties of a route that no comparison with the reference shows.

Each is a function of a route, a configuration and a device that returns None, or what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..kernels import Config, get_kernel
from ..kernels.inputs import AttentionInputs, Workspace, allocate_workspace
from ..kernels.launch import run, run_launch
from ..kernels.random_inputs import random_inputs
from ..kernels.routes import padded_head_size
from ..problem import AttentionFamily
from .case import Case
from .outcome import poison

Property = Callable[[str, Config, Any], "str | None"]

_FAMILY = AttentionFamily(4, 2, 64, value_head_size=48, kv_dtype="fp8", kv_scales="per_token_head")
_MIXED = Case("mixed", _FAMILY, (1, 2, 9), (70, 5, 130))
_ALIKE = Case("queries of about one length", _FAMILY, (9, 12), (70, 61))


def packed_and_uniform_blocks_agree(route: str, config: Config, device: Any) -> str | None:
    """A server may know only a bound of the query lengths; how that lays out the blocks changes no bit."""
    config = _ALIKE.complete(config)
    uniform = _ALIKE.inputs(device)
    packed = replace(_ALIKE.inputs(device), max_seqlen_q=1000)
    layouts = [get_kernel(route).plan(inputs, config)[0].arguments["blocks_per_seq"] for inputs in (uniform, packed)]
    if layouts[0] == 0 or layouts[1] != 0:
        return f"blocks per sequence are {layouts}: the case does not try both layouts"
    return _same_bits(_output(route, uniform, config), _output(route, packed, config))


def unused_slots_do_not_matter(route: str, config: Config, device: Any) -> str | None:
    """What the cache holds where no sequence has a token, NaN or numbers, changes no bit."""
    config = _MIXED.complete(config)
    lengths: dict[str, Any] = {"query_lens": _MIXED.query_lens, "kv_lens": _MIXED.kv_lens}
    outputs = [
        _output(route, random_inputs(_MIXED.problem, device, **lengths, poison=poisoned), config)
        for poisoned in (True, False)
    ]
    return _same_bits(*outputs)


def old_workspace_does_not_matter(route: str, config: Config, device: Any) -> str | None:
    """A workspace larger than needed and full of NaN gives the result of a fresh one."""
    config = _MIXED.complete(config)
    inputs = _MIXED.inputs(device)
    used = _workspace(inputs, config["NUM_SEGMENTS"] + 3)
    for tensor in (used.partial, used.partial_max, used.partial_sum):
        tensor.fill_(float("nan"))
    return _same_bits(_output(route, inputs, config), _output(route, inputs, config, used))


def partials_add_up(route: str, config: Config, device: Any) -> str | None:
    """The first launch alone hands back partials that make the result of the whole call.

    They are combined as in FlashDecoding: weights are 2**(maximum - largest maximum), an empty segment weighs nothing.
    """
    config = _MIXED.complete(config)
    inputs = _MIXED.inputs(device)
    segments = config["NUM_SEGMENTS"]
    workspace = _workspace(inputs, segments)
    workspace.partial.fill_(float("nan"))
    whole = _output(route, inputs, config)
    run_launch(get_kernel(route).plan(inputs, config, workspace)[0])
    rows = inputs.q.shape[:2]
    maximum = workspace.partial_max.view(*rows, segments)
    empty = maximum == float("-inf")
    if not empty.any() or empty.all(-1).any():
        return "the case needs segments without keys, and rows with some"
    weight = torch.exp2(maximum - maximum.amax(-1, keepdim=True))
    total = (weight * workspace.partial_sum.view(*rows, segments)).masked_fill(empty, 0.0).sum(-1)
    partial = workspace.partial.view(*rows, segments, -1).masked_fill(empty[..., None], 0.0)
    out = (weight[..., None] * partial).sum(2)[..., : inputs.value_head_size] / total[..., None]
    error = float((out - whole.float()).norm() / out.norm())
    return None if error <= 5e-3 else f"partials combined by hand differ from the output by {error:.1e}"


PROPERTIES: tuple[Property, ...] = (packed_and_uniform_blocks_agree, unused_slots_do_not_matter)
SPLIT_PROPERTIES: tuple[Property, ...] = (old_workspace_does_not_matter, partials_add_up)
"""Those of routes that split the keys into segments."""


def _output(route: str, inputs: AttentionInputs, config: Config, workspace: Workspace | None = None) -> torch.Tensor:
    poison(inputs)
    run(route, inputs, config, workspace)
    return inputs.out.clone()


def _workspace(inputs: AttentionInputs, num_segments: int) -> Workspace:
    num_tokens, num_query_heads = inputs.q.shape[:2]
    return allocate_workspace(
        num_tokens, num_query_heads, num_segments, padded_head_size(inputs.value_head_size), inputs.q.device
    )


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> str | None:
    if torch.isnan(a).any():
        return "the output holds NaN"
    differing = int((a != b).sum())
    return f"{differing} of {a.numel()} elements differ" if differing else None
