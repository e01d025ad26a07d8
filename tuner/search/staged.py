"""The staged search of one cell: the model's favourites and the rules, then what their times make of it, then a final.

It sees measurements only through a function, so that a recorded set of them can be searched again without a GPU.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..arch import ArchSpec
from ..evaluate.measure import Measurement
from ..evaluate.resources import Resources
from ..problem import AttentionProblem
from .predictions import Compilation, compilation, predicted_candidates, rule_configs, with_segments

Key = tuple[str, tuple[tuple[str, int], ...]]
"""A kernel and the items of a complete config, in order."""

Identity = tuple[str, frozenset[tuple[str, int]]]
"""A key as :func:`identity` compares it."""

Measure = Callable[[Sequence[Key], bool], list[Measurement]]
"""Check and time configurations; True asks for careful times, in rounds against each other."""


Search = Callable[..., dict[Key, Measurement]]
"""A strategy: (problem, compiled, arch, measure, effort) -> careful measurements, as :func:`search_cell`."""


@dataclass(frozen=True)
class Effort:
    """How much of a cell is timed."""

    favourites: int = 18  # by predicted time
    of_one_compilation: int = 3  # at most, among the favourites
    second_looks: int = 6  # by predicted time, corrected by what was measured
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
    rules = list(dict.fromkeys(rule_keys(problem, arch).values()))
    screened: dict[Key, Measurement] = {}

    def screen(keys: Sequence[Key]) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in screened]
        if new:
            screened.update(zip(new, measure(new, False), strict=True))

    screen([*rules, *favourites(problem, compiled, arch, effort)])
    screen(second_looks(problem, compiled, arch, screened, effort))
    return final(screened, rules, measure, effort)


def search_cell_exhaustively(
    problem: AttentionProblem,
    compiled: Mapping[Compilation, Resources],
    arch: ArchSpec,
    measure: Measure,
    effort: Effort,
) -> dict[Key, Measurement]:
    """Time every compiled configuration with every segment count: slow, and what other strategies are judged by."""
    rules = list(dict.fromkeys(rule_keys(problem, arch).values()))
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
    for item in sorted(predicted_candidates(problem, compiled, arch), key=lambda item: (item.us, item.key)):
        key = compilation(item.kernel, item.config)
        if len(chosen) < effort.favourites and taken.get(key, 0) < effort.of_one_compilation:
            taken[key] = taken.get(key, 0) + 1
            chosen.append((item.kernel, tuple(item.config.items())))
    return chosen


def second_looks(
    problem: AttentionProblem,
    compiled: Mapping[Compilation, Resources],
    arch: ArchSpec,
    screened: Mapping[Key, Measurement],
    effort: Effort,
) -> list[Key]:
    """The best of the untimed configurations once measured times have corrected the predictions.

    A compilation that took 0.8 of its predicted time with one segment count is expected to do so with the others, for
    the model errs more about code than about sizes. Compilations without a time get the median correction.
    """
    predicted = {
        (item.kernel, tuple(item.config.items())): item.us for item in predicted_candidates(problem, compiled, arch)
    }
    errors: dict[Compilation, list[float]] = {}
    for key in _ranked(screened):
        us = screened[key].us
        if us is not None and math.isfinite(predicted.get(key, math.inf)):
            errors.setdefault(compilation(key[0], dict(key[1])), []).append(math.log(us / predicted[key]))
    corrections = {own: math.exp(statistics.fmean(values)) for own, values in errors.items()}
    usual = statistics.median(corrections.values()) if corrections else 1.0

    def corrected(key: Key) -> float:
        return predicted[key] * corrections.get(compilation(key[0], dict(key[1])), usual)

    return sorted((key for key in predicted if key not in screened), key=corrected)[: effort.second_looks]


def rule_keys(problem: AttentionProblem, arch: ArchSpec) -> dict[str, Key]:
    """What each baseline rule runs at a problem."""
    return {name: full_key(*choice) for name, choice in rule_configs(problem, arch).items()}


def identity(key: Key) -> Identity:
    """A key without the order of its config's entries, for comparing keys of different origin."""
    return key[0], frozenset(key[1])


def full_key(key: Compilation, segments: int) -> Key:
    """A compilation with its segment count."""
    return key[0], tuple(with_segments(dict(key[1]), segments).items())


def _ranked(results: Mapping[Key, Measurement]) -> list[Key]:
    """The keys that ran, fastest first."""
    timed = {key: item.us for key, item in results.items() if item.status == "ok" and item.us is not None}
    return sorted(timed, key=lambda key: timed[key])
