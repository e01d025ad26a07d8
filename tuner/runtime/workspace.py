"""Room for the partial results of split calls, and how to read them.

A call without a workspace takes one from torch's caching allocator, which knows streams and graphs: inside a capture
the memory belongs to the graph's pool, so that the calls of a model's layers share it and replays keep it. A cache of
our own could be freed, or shared between streams, under a graph that still uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from ..kernels.inputs import AttentionInputs, Workspace, allocate_workspace
from ..kernels.protocol import Kernel
from ..kernels.routes import PagedAttention, padded_head_size
from ..problem import AttentionProblem
from .choose import choose


class Partials(NamedTuple):
    """The results of a split call before their reduction, views of its workspace.

    ``partial`` [num_tokens, num_query_heads, num_segments, padded value head size] is not normalised; ``partial_max``
    and ``partial_sum`` [num_tokens, num_query_heads, num_segments] are the row maximum and the sum of 2**(logit - max),
    with logits in base 2: ``out = sum(2**(max_s - m) * partial_s) / sum(2**(max_s - m) * sum_s)``, m the largest max.
    A segment without keys has the maximum -inf, and nothing else of it is written; nor is anything of padding rows.
    Sinks are not counted and an output scale is not applied.
    """

    partial: torch.Tensor
    partial_max: torch.Tensor
    partial_sum: torch.Tensor


def splits(kernel: Kernel) -> bool:
    """Whether a kernel divides the keys and leaves partial results in a workspace of this project's layout."""
    return isinstance(kernel, PagedAttention) and kernel.split


def allocate_workspace_for(
    problems: Iterable[AttentionProblem],
    device: torch.device | str,
    *,
    route: str | None = None,
    config: Mapping[str, int] | None = None,
) -> Workspace:
    """A workspace for every call of the given problems, the largest of them deciding: what an engine makes before it
    captures its graphs. Calls of shorter max_seqlen_k fit as well, as long as the same row of the table answers them.
    ``num_tokens`` counts the rows of ``q``, padding included; ``route`` and ``config`` are those that the calls will
    pass.

    Raises:
        NotImplementedError, ValueError: as for :func:`~attn_tune.runtime.choose.choose`.
    """
    device = torch.device(device)
    rows = elements = 0
    for problem in problems:
        kernel, settings = choose(problem, device.type == "cuda", route, config)
        segments = settings["NUM_SEGMENTS"] if splits(kernel) else 0
        if segments > 1 and "NUM_SEGMENTS" not in (config or {}):
            # A shorter length may leave fewer segments without keys, so that up to twice as many are made of the row's.
            segments = min(2 * segments - 1, -(-problem.max_seqlen_k // settings["TILE_SIZE"]))
        needed = problem.num_tokens * problem.family.num_query_heads * segments
        rows = max(rows, needed)
        elements = max(elements, needed * padded_head_size(problem.family.value_head_size))
    return Workspace(*(torch.empty(size, dtype=torch.float32, device=device) for size in (elements, rows, rows)))


def workspace_for(inputs: AttentionInputs, num_segments: int, given: Workspace | None) -> Workspace:
    """The caller's workspace, found large enough for a split call, or a new one.

    Raises:
        ValueError: the caller's workspace does not fit; the message names it.
    """
    padded = padded_head_size(inputs.value_head_size)
    num_tokens, num_query_heads = inputs.q.shape[:2]
    if given is None:
        return allocate_workspace(num_tokens, num_query_heads, num_segments, padded, inputs.q.device)
    rows = num_tokens * num_query_heads * num_segments
    for name, needed in (("partial", rows * padded), ("partial_max", rows), ("partial_sum", rows)):
        tensor: Any = getattr(given, name)
        if tensor.numel() < needed:
            raise ValueError(f"workspace.{name} has {tensor.numel()} elements, but this call needs {needed}")
        if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.device != inputs.q.device:
            raise ValueError(f"workspace.{name} must be contiguous float32 on {inputs.q.device}")
    return given


def partials_of(inputs: AttentionInputs, num_segments: int, workspace: Workspace) -> Partials:
    """The part of a workspace that a split call filled, in its shape."""
    shape = (*inputs.q.shape[:2], num_segments)
    rows = inputs.q.shape[0] * inputs.q.shape[1] * num_segments
    padded = padded_head_size(inputs.value_head_size)
    return Partials(
        workspace.partial.flatten()[: rows * padded].view(*shape, padded),
        workspace.partial_max.flatten()[:rows].view(shape),
        workspace.partial_sum.flatten()[:rows].view(shape),
    )
