"""Which configurations of a family to compile: the rules' and the best estimated first, then neighbours of the best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, zip_longest

from ..arch import ArchSpec
from ..evaluate.estimate import UNSEEN
from ..evaluate.resources import Resources
from ..kernels import get_kernel
from ..problem import AttentionFamily
from .grid import representative_sizes, size_grid
from .predictions import Compilation, compilation, estimated_us, predicted_candidates, rule_configs, supported_kernels


def space(family: AttentionFamily, arch: ArchSpec) -> list[Compilation]:
    """Every compilation that the supporting kernels offer for a family, in the kernels' order."""
    return [
        compilation(name, config)
        for name in supported_kernels(family, arch)
        for config in get_kernel(name).space(family, arch)
    ]


def rule_compilations(family: AttentionFamily, arch: ArchSpec) -> list[Compilation]:
    """What the baseline rules choose anywhere on the family's size grid."""
    found: dict[Compilation, None] = {}
    for problem in size_grid(family):
        found.update(dict.fromkeys(choice for choice, _ in rule_configs(problem, arch).values()))
    return list(found)


def first_round(family: AttentionFamily, arch: ArchSpec, limit: int) -> list[Compilation]:
    """The rules' compilations and ``limit`` more: round robin, each representative size's best estimated ones."""
    offered = _distinguishable(space(family, arch))
    rankings = [
        sorted(offered, key=lambda key, problem=problem: estimated_us(problem, key, arch))  # type: ignore[misc]
        for problem in representative_sizes(family)
    ]
    rules = rule_compilations(family, arch)
    best = _first_new(chain.from_iterable(zip_longest(*rankings)), rules, limit)
    return [*rules, *best]


def next_round(
    family: AttentionFamily,
    arch: ArchSpec,
    compiled: Mapping[Compilation, Resources],
    tried: Collection[Compilation],
    limit: int,
) -> list[Compilation]:
    """At most ``limit`` untried relatives of what is predicted best at each representative size.

    First the same parameters on the other routes, so that routes are compared like with like; then neighbours in one
    parameter, the best estimated first.
    """
    offered = space(family, arch)
    neighbours: list[list[Compilation]] = []
    for problem in representative_sizes(family):
        candidates = list(predicted_candidates(problem, compiled, arch))
        if candidates:
            # Ties are common, and ``compiled`` is in the order of completion: the key makes every run choose alike.
            best = min(candidates, key=lambda item: (item.us, item.key))
            leader = compilation(best.kernel, best.config)
            siblings = [key for key in offered if _sibling(leader, key)]
            near = [key for key in offered if one_step(leader, key)]
            neighbours.append([*siblings, *sorted(near, key=lambda key: estimated_us(problem, key, arch))])
    return _first_new(chain.from_iterable(zip_longest(*neighbours)), tried, limit)


def _distinguishable(keys: Iterable[Compilation]) -> list[Compilation]:
    """The first of each set of compilations that the estimate cannot tell apart: the others wait for its result."""
    first: dict[tuple[str, frozenset[tuple[str, int]]], Compilation] = {}
    for key in keys:
        first.setdefault((key[0], frozenset(item for item in key[1] if item[0] not in UNSEEN)), key)
    return list(first.values())


def one_step(first: Compilation, second: Compilation) -> bool:
    """Whether two compilations of one kernel differ in one parameter, a size by a factor of two at most."""
    if first[0] != second[0] or first == second:
        return False
    a, b = dict(first[1]), dict(second[1])
    changed = [(a.get(name, 0), b.get(name, 0)) for name in a.keys() | b.keys() if a.get(name, 0) != b.get(name, 0)]
    if len(changed) != 1:
        return False
    low, high = sorted(changed[0])
    return low == 0 or high <= 2 * low


def _sibling(first: Compilation, second: Compilation) -> bool:
    """Whether two compilations are of different routes with the same parameters, as far as both have them."""
    a, b = dict(first[1]), dict(second[1])
    return first[0] != second[0] and all(a[name] == b[name] for name in a.keys() & b.keys())


def _first_new(keys: Iterator[Compilation | None], known: Collection[Compilation], limit: int) -> list[Compilation]:
    found: dict[Compilation, None] = {}
    for key in keys:
        if len(found) >= limit:
            break
        if key is not None and key not in known:
            found[key] = None
    return list(found)
