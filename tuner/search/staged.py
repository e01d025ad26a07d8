"""The staged search of one cell: the model's favourites and the rules, then neighbours of the best, then a final.

It sees measurements only through a function, so that a recorded set of them can be searched again without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..arch import ArchSpec
from ..evaluate.measure import Measurement
from ..evaluate.resources import Resources
from ..kernels import get_kernel
from ..problem import AttentionProblem
from .predictions import Compilation, compilation, predicted_candidates, rule_configs, with_segments
from .propose import one_step

Key = tuple[str, tuple[tuple[str, int], ...]]
"""A kernel and the items of a complete config, in order."""

Measure = Callable[[Sequence[Key], bool], list[Measurement]]
"""Check and time configurations; True asks for careful times, in rounds against each other."""


Search = Callable[..., dict[Key, Measurement]]
"""A strategy: (problem, compiled, arch, measure, effort) -> careful measurements, as :func:`search_cell`."""


@dataclass(frozen=True)
class Effort:
    """How much of a cell is timed."""

    favourites: int = 20  # by predicted time
    of_one_compilation: int = 3  # at most, among the favourites
    neighbours: int = 6
    finalists: int = 6
    within: float = 1.08  # of the best screened time, to reach the final


def search_cell(
    problem: AttentionProblem,
    compiled: Mapping[Compilation, Resources],
    arch: ArchSpec,
    measure: Measure,
    effort: Effort,
) -> dict[Key, Measurement]:
    """Search one cell; returns the careful measurements of the finalists, the best rule's among them.

    Empty when nothing ran.
    """
    rules = list(dict.fromkeys(full_key(key, segments) for key, segments in rule_configs(problem, arch).values()))
    screened: dict[Key, Measurement] = {}

    def screen(keys: Sequence[Key]) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in screened]
        screened.update(zip(new, measure(new, False), strict=True))

    screen([*rules, *favourites(problem, compiled, arch, effort)])
    leaders = _ranked(screened)[:2]
    near = [neighbours(problem, key, compiled, arch) for key in leaders]
    mixed = [key for pair in zip(*near, strict=False) for key in pair] + [key for keys in near for key in keys]
    screen([key for key in dict.fromkeys(mixed) if key not in screened][: effort.neighbours])
    return final(screened, rules, measure, effort)


def search_cell_exhaustively(
    problem: AttentionProblem,
    compiled: Mapping[Compilation, Resources],
    arch: ArchSpec,
    measure: Measure,
    effort: Effort,
) -> dict[Key, Measurement]:
    """Time every compiled configuration with every segment count: slow, and what other strategies are judged by."""
    rules = list(dict.fromkeys(full_key(key, segments) for key, segments in rule_configs(problem, arch).values()))
    everything = [(item.kernel, tuple(item.config.items())) for item in predicted_candidates(problem, compiled, arch)]
    keys = list(dict.fromkeys([*rules, *everything]))
    return final(dict(zip(keys, measure(keys, False), strict=True)), rules, measure, effort)


def final(
    screened: Mapping[Key, Measurement], rules: Collection[Key], measure: Measure, effort: Effort
) -> dict[Key, Measurement]:
    """Careful measurements of the fastest screened configurations against each other, the best rule's among them."""
    ranked = _ranked(screened)
    if not ranked:
        return {}
    limit = (screened[ranked[0]].us or 0.0) * effort.within
    finalists = [key for key in ranked if (screened[key].us or 0.0) <= limit][: effort.finalists]
    best_rule = next((key for key in ranked if key in rules), None)
    if best_rule is not None and best_rule not in finalists:
        finalists.append(best_rule)
    return dict(zip(finalists, measure(finalists, True), strict=True))


def favourites(
    problem: AttentionProblem, compiled: Mapping[Compilation, Resources], arch: ArchSpec, effort: Effort
) -> list[Key]:
    """The best predicted configurations, few of each compilation so that the model's blind spots are spread."""
    chosen: list[Key] = []
    taken: dict[Compilation, int] = {}
    for item in sorted(predicted_candidates(problem, compiled, arch), key=lambda item: item.us):
        key = compilation(item.kernel, item.config)
        if len(chosen) < effort.favourites and taken.get(key, 0) < effort.of_one_compilation:
            taken[key] = taken.get(key, 0) + 1
            chosen.append((item.kernel, tuple(item.config.items())))
    return chosen


def neighbours(
    problem: AttentionProblem, key: Key, compiled: Mapping[Compilation, Resources], arch: ArchSpec
) -> list[Key]:
    """Compiled configurations one step from a key: the next segment counts, then compilations that differ in one
    parameter, at the same segment count."""
    kernel, config = get_kernel(key[0]), dict(key[1])
    own = compilation(key[0], config)
    resources = compiled.get(own)
    occupancy = (
        arch.programs_per_unit(resources.num_warps, resources.registers, resources.lds_bytes) if resources else 1
    )
    segments = config["NUM_SEGMENTS"]
    counts = sorted(kernel.segments(problem, config, arch, max(occupancy, 1)), key=lambda count: abs(count - segments))
    found = [full_key(own, count) for count in counts if count != segments][:3]
    return found + [full_key(other, segments) for other in compiled if one_step(own, other)]


def full_key(key: Compilation, segments: int) -> Key:
    """A compilation with its segment count."""
    return key[0], tuple(with_segments(dict(key[1]), segments).items())


def _ranked(results: Mapping[Key, Measurement]) -> list[Key]:
    """The keys that ran, fastest first."""
    timed = {key: item.us for key, item in results.items() if item.status == "ok" and item.us is not None}
    return sorted(timed, key=lambda key: timed[key])
