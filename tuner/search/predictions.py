"""Predicted times of compiled configurations at one problem, over the segment counts worth considering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..arch import ArchSpec
from ..baselines import rule_choices
from ..evaluate.estimate import estimate_resources
from ..evaluate.model import predict
from ..evaluate.resources import Resources
from ..kernels import Config, get_kernel, kernel_names
from ..problem import AttentionFamily, AttentionProblem
from ..store.build import Candidate
from ..store.programs import compiled_entries

Compilation = tuple[str, tuple[tuple[str, int], ...]]
"""A kernel and what is compiled of its config, in the config's order."""


def compilation(kernel: str, config: Config) -> Compilation:
    """The part of a configuration that is compiled."""
    return kernel, tuple(compiled_entries(config).items())


def supported_kernels(family: AttentionFamily, arch: ArchSpec) -> list[str]:
    """The routes that compute a family on an arch."""
    return [name for name in kernel_names() if get_kernel(name).supports(family, arch) is None]


def rule_configs(problem: AttentionProblem, arch: ArchSpec) -> dict[str, tuple[Compilation, int]]:
    """What each baseline rule runs at a problem: its compilation, with the kernel's own defaults, and its segments."""
    choices = {}
    for name, choice in rule_choices(problem, arch).items():
        kernel = get_kernel(choice.route)
        if kernel.supports(problem.family, arch) is None:
            config = kernel.complete(choice.config, arch)
            choices[name] = compilation(choice.route, config), config["NUM_SEGMENTS"]
    return choices


def predicted_candidates(
    problem: AttentionProblem, compiled: Mapping[Compilation, Resources], arch: ArchSpec
) -> Iterator[Candidate]:
    """Every compiled configuration with each of its segment counts, and the rules' own, with predicted times."""
    rules: dict[tuple[Compilation, int], list[str]] = {}
    for name, choice in rule_configs(problem, arch).items():
        rules.setdefault(choice, []).append(name)
    for key, resources in compiled.items():
        kernel = get_kernel(key[0])
        config = dict(key[1])
        occupancy = arch.programs_per_unit(resources.num_warps, resources.registers, resources.lds_bytes)
        counts = set(kernel.segments(problem, config, arch, max(occupancy, 1)))
        counts |= {segments for other, segments in rules if other == key}
        for segments in sorted(counts):
            full = with_segments(config, segments)
            prediction = predict(kernel.work(problem, full), resources, arch)
            yield Candidate(key[0], full, prediction.us, "modelled", rules=tuple(rules.get((key, segments), ())))


def estimated_us(problem: AttentionProblem, key: Compilation, arch: ArchSpec) -> float:
    """The best predicted time over segment counts of a configuration that was not compiled."""
    kernel = get_kernel(key[0])
    config = dict(key[1])
    best = float("inf")
    resources = None
    for segments in (1, *kernel.segments(problem, config, arch, 2)):
        work = kernel.work(problem, with_segments(config, segments))
        resources = resources or estimate_resources(work, problem.family, config, arch)
        best = min(best, predict(work, resources, arch).us)
    return best


def with_segments(config: Mapping[str, int], segments: int) -> dict[str, int]:
    """The config with NUM_SEGMENTS in its usual place, after the tile's size."""
    items = list(config.items())
    return dict([*items[:2], ("NUM_SEGMENTS", segments), *items[2:]])
