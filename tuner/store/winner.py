"""Who wins one cell: the rules that keep noise, wrong output and impossible times out of the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .evidence import EVIDENCE
from .programs import compiled_entries

TIE = 1.002
"""Times within this ratio are equal, and the simpler configuration wins."""

ERROR_RATIO = 3
"""An error may exceed the smallest one of its cell this many times."""

_ERROR_FLOOR = 1e-6  # an exact result, from inputs that happen not to round, must not disqualify all others

Key = tuple[str, tuple[tuple[str, int], ...]]
"""A kernel and a configuration, hashable."""


@dataclass(frozen=True)
class Candidate:
    """One configuration at one cell. ``rules`` names the baseline rules that choose it there.

    ``us`` is microseconds, ``spread`` its relative spread over ``samples`` samples, ``error`` the relative L2 error.
    """

    kernel: str
    config: Mapping[str, int]
    us: float
    evidence: str
    spread: float | None = None
    samples: int = 0
    error: float | None = None
    rules: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Kernel and configuration."""
        return self.kernel, tuple(sorted(self.config.items()))

    @property
    def compilation(self) -> Key:
        """What is compiled: the number of segments is a run-time argument."""
        return self.kernel, tuple(sorted(compiled_entries(self.config).items()))


def simplicity(key: Key) -> tuple[Any, ...]:
    """Sorts simpler configurations first: fewer segments, stages, warps; smaller tiles; paged_2d before others."""
    kernel, items = key
    config = dict(items)
    names = ("num_stages", "num_warps", "BLOCK_M", "TILE_SIZE")
    segments = config.get("NUM_PROGRAMS", 0), config.get("NUM_SEGMENTS", 1)
    return *segments, *(config.get(name, 0) for name in names), kernel != "paged_2d", kernel, items


def comparable(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that may win a cell: possible times, of the strongest evidence there, with an error like the best.

    One that appears twice counts with its shorter time. Empty when none is valid.
    """
    possible = [item for item in candidates if math.isfinite(item.us) and item.us > 0]
    strongest = max((EVIDENCE.index(item.evidence) for item in possible), default=0)
    possible = [item for item in possible if EVIDENCE.index(item.evidence) == strongest]
    errors = [item.error for item in possible if item.error is not None]
    limit = ERROR_RATIO * max(min((error for error in errors if not math.isnan(error)), default=0), _ERROR_FLOOR)
    accurate = [item for item in possible if item.error is None or item.error <= limit]
    unique: dict[Key, Candidate] = {}
    for item in sorted(accurate, key=lambda item: item.us):
        unique.setdefault(item.key, item)
    return list(unique.values())


def winner(candidates: Sequence[Candidate]) -> Candidate:
    """The best of some comparable candidates: a baseline rule's unless another one is faster by more than the noise."""
    best = _fastest(candidates)
    rule = best_rule(candidates)
    return best if rule is None or rule.us - best.us > _noise(rule, best) else rule


def best_rule(candidates: Iterable[Candidate]) -> Candidate | None:
    """The fastest candidate that a baseline rule chooses, if any."""
    rules = [item for item in candidates if item.rules]
    return _fastest(rules) if rules else None


def acceptable(candidates: Sequence[Candidate], tolerance: float) -> Callable[[Candidate], bool]:
    """Whether a candidate is as good as the winner: within ``tolerance``, and not measurably slower than any rule.

    A model cannot tell differences as small as the tolerance apart, so only measured times hold the rule's line.
    """
    limit = winner(candidates).us * (1 + tolerance)
    rule = best_rule(candidates)

    def accept(item: Candidate) -> bool:
        loses = rule is not None and item.evidence == "measured" and item.us - rule.us > _noise(rule, item)
        return item.us <= limit and not loses

    return accept


def _fastest(candidates: Iterable[Candidate]) -> Candidate:
    items = list(candidates)
    limit = min(item.us for item in items) * TIE
    return min((item for item in items if item.us <= limit), key=lambda item: simplicity(item.key))


def _noise(first: Candidate, second: Candidate) -> float:
    """The spread of the difference of two times, in microseconds."""
    return math.hypot(*(item.us * (item.spread or 0) for item in (first, second)))
