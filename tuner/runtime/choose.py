"""Which kernel computes a call, and with which config: the table's answer with the caller's wishes laid over it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ..arch import ARCHS, ArchSpec, find_arch
from ..device import local_device
from ..kernels import Kernel, get_kernel
from ..kernels.lds import min_block_m
from ..kernels.routes import PagedAttention
from ..problem import AttentionProblem
from .lookup import get_config

_NEEDED = ("BLOCK_M", "TILE_SIZE", "num_warps", "num_stages")


def choose(
    problem: AttentionProblem,
    on_gpu: bool,
    route: str | None = None,
    config: Mapping[str, int] | None = None,
    total_seqlen_k: int = 0,
) -> tuple[Kernel, dict[str, int]]:
    """The kernel and its complete config. ``config`` overrides single entries of the table's.

    Off the GPU, in Triton's interpreter, the answer is that for an arch that nothing is known about.

    Raises:
        NotImplementedError: the kernel does not compute the problem; the message names route and argument.
        ValueError: ``route`` is unknown, or ``config`` makes no launch.
    """
    arch = _local_arch() if on_gpu else None
    wanted = dict(config or {})
    if route is None or not all(name in wanted for name in (*_NEEDED, "NUM_SEGMENTS")):
        family, num_seqs, max_seqlen_q, max_seqlen_k = problem.family, *problem.sizes
        answer = get_config(
            arch=None if on_gpu else "cpu",
            **vars(family),
            num_seqs=num_seqs,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            num_tokens=problem.num_tokens,
            total_seqlen_k=total_seqlen_k,
        )
        kernel = get_kernel(route or answer.route)
        settings = {**answer.config, **wanted}
        _check_config(kernel, settings, problem)
        if kernel.name != answer.route and "NUM_SEGMENTS" not in wanted:
            settings["NUM_SEGMENTS"] = _segments(kernel, problem, settings, arch)
    else:
        kernel, settings = get_kernel(route), wanted
        _check_config(kernel, settings, problem)
    reason = kernel.supports(problem.family, arch or _GENERIC)
    if reason is not None:
        raise NotImplementedError(reason)
    return kernel, kernel.complete(settings, arch)


def _segments(kernel: Kernel, problem: AttentionProblem, settings: Mapping[str, int], arch: ArchSpec | None) -> int:
    """The NUM_SEGMENTS of a route that the caller chose against the table: two programs on each unit, if it splits."""
    arch = arch or _GENERIC
    counts = kernel.segments(problem, settings, arch, 2)
    programs = kernel.work(problem, {**settings, "NUM_SEGMENTS": 1}).programs
    fitting = [count for count in counts if count * programs <= 2 * arch.compute_units]
    return max(fitting, default=min(counts, default=1))


def _check_config(kernel: Kernel, config: Mapping[str, int], problem: AttentionProblem) -> None:
    """Refuse what would fail in the compiler or divide by zero, whoever wrote it: a caller, or a person in a table."""
    if not isinstance(kernel, PagedAttention):
        return  # a third party's kernel has parameters of its own
    for name in _NEEDED:
        if name not in config:
            raise ValueError(f"config has no {name}")
    for name in ("BLOCK_M", "TILE_SIZE"):
        if config[name] < 16 or config[name] & (config[name] - 1):
            raise ValueError(f"config: {name} must be a power of two of at least 16, not {config[name]}")
    if config["BLOCK_M"] < min_block_m(problem.family):
        raise ValueError(f"config: BLOCK_M {config['BLOCK_M']} is less than the query heads of a KV head")
    if config.get("NUM_SEGMENTS", 1) < 1:
        raise ValueError(f"config: NUM_SEGMENTS must be at least 1, not {config['NUM_SEGMENTS']}")


_GENERIC = ARCHS["sm_90"]  # stands in for an unknown arch where a kernel wants to be told one


@cache
def _local_arch() -> ArchSpec | None:
    device = local_device()
    return find_arch(device.arch) if device else None
