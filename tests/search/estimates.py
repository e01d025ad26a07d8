"""Resources for compilations without compiling: the estimate that proposals are ranked by."""

from __future__ import annotations

from collections.abc import Iterable

from attn_tune.arch import ArchSpec
from attn_tune.evaluate.estimate import estimate_resources
from attn_tune.evaluate.resources import Resources
from attn_tune.kernels import get_kernel
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.predictions import Compilation, with_segments


def estimated(keys: Iterable[Compilation], family: AttentionFamily, arch: ArchSpec) -> dict[Compilation, Resources]:
    """The estimated resources of each compilation, in order."""
    problem = AttentionProblem(family, 16, 4, 8192)
    return {
        key: estimate_resources(
            get_kernel(key[0]).work(problem, with_segments(dict(key[1]), 1)), family, dict(key[1]), arch
        )
        for key in keys
    }
