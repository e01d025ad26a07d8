"""Greedy set cover: the fewest choices that serve every cell.

Greedy is within a factor ln(n) of the fewest (Johnson, 1974), and on tables usually finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def fewest(options: Sequence[Mapping[K, float]], rank: Callable[[K], Any]) -> list[K]:
    """A small set of keys with at least one of every option.

    Each option maps the keys that serve one cell to their cost there. Ties go to the lower total cost over the cells
    newly served, then to the lower ``rank``, so the result does not depend on the order of anything.

    Raises:
        ValueError: an option is empty.
    """
    if not all(options):
        raise ValueError("an option without keys cannot be served")
    serves: dict[K, dict[int, float]] = {}
    for cell, option in enumerate(options):
        for key, cost in option.items():
            serves.setdefault(key, {})[cell] = cost
    chosen: list[K] = []
    left = set(range(len(options)))
    while left:

        def merit(key: K, left: set[int] = left) -> tuple[Any, ...]:
            new = serves[key].keys() & left
            return -len(new), sum(sorted(serves[key][cell] for cell in new)), rank(key)

        best = min(serves, key=merit)
        chosen.append(best)
        left = left - serves[best].keys()
    # An early choice can become redundant once later ones serve its cells.
    for key in list(chosen):
        others = [other for other in chosen if other != key]
        if all(any(other in option for other in others) for option in options):
            chosen = others
    return chosen
