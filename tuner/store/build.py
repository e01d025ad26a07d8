"""Build the table of one family from candidates at a set of sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..problem import AttentionFamily
from .boxes import intervals, merge_boxes
from .cover import fewest
from .evidence import weakest
from .table import Box, ConfigRow, FamilyTable, RoutingRow, Sizes
from .winner import Candidate, Key, acceptable, best_rule, comparable, simplicity, winner

__all__ = ["Candidate", "build_family"]

SEQS_BELOW = 0.25
"""Of the way from one tuned num_seqs to the next, the part that the smaller one answers."""


@dataclass(frozen=True)
class _Cell:
    """The winner at some sizes, and what it is compared with."""

    winner: Candidate
    fastest_us: float
    rule_us: float | None


def build_family(
    family: AttentionFamily, cells: Mapping[Sizes, Sequence[Candidate]], tolerance: float = 0.02
) -> FamilyTable:
    """The rows of a family: every size answered, by the fewest compilations within ``tolerance`` of the best.

    ``cells`` maps (num_seqs, max_seqlen_q, max_seqlen_k) to the candidates there. The cells need not form a full grid:
    a missing cell, or one without a valid candidate, takes the answer of the nearest one in log space. The result does
    not depend on the order of cells or candidates.

    Raises:
        ValueError: no cell has a valid candidate.
    """
    pools = {sizes: pool for sizes, items in sorted(cells.items()) if (pool := comparable(items))}
    if not pools:
        raise ValueError(f"no cell of {family} has a valid candidate")
    chosen = _choose(pools, tolerance)
    results = {}
    for sizes, pool in pools.items():
        rule = best_rule(pool)
        results[sizes] = _Cell(chosen[sizes], min(item.us for item in pool), rule.us if rule else None)
    grid = _grid(results)
    num_seqs, max_seqlen_q, max_seqlen_k = (max(axis) for axis in zip(*results, strict=True))
    return FamilyTable(family, _routing(grid, results), _configs(grid, results), (num_seqs, max_seqlen_q, max_seqlen_k))


def _choose(pools: Mapping[Sizes, Sequence[Candidate]], tolerance: float) -> dict[Sizes, Candidate]:
    """The winner of every cell, after dropping compilations, then configurations, that the table can do without."""
    accepted: dict[Sizes, list[Candidate]] = {}
    for sizes, pool in pools.items():
        accept = acceptable(pool, tolerance)
        accepted[sizes] = [item for item in pool if accept(item)]
    accepted = _restrict(accepted, lambda item: item.compilation)
    accepted = _restrict(accepted, lambda item: item.key)
    return {sizes: winner(items) for sizes, items in accepted.items()}


def _restrict(
    accepted: Mapping[Sizes, Sequence[Candidate]], key: Callable[[Candidate], Key]
) -> dict[Sizes, list[Candidate]]:
    """The candidates left in each cell when as few different keys as possible are used over all cells."""
    options = []
    for items in accepted.values():
        best = winner(items)  # within the noise a rule's choice counts as the best
        costs: dict[Key, float] = {}
        for item in items:
            cost = 1.0 if item is best else max(item.us / best.us, 1.0 + 1e-6)
            costs[key(item)] = min(costs.get(key(item), math.inf), cost)
        options.append(costs)
    kept = set(fewest(options, simplicity))
    return {sizes: [item for item in items if key(item) in kept] for sizes, items in accepted.items()}


def _grid(results: Iterable[Sizes]) -> list[tuple[Box, Sizes]]:
    """Boxes that cover all sizes, each with the cell that answers for it."""
    known = list(results)
    seqs, queries, keys = (sorted(set(axis)) for axis in zip(*known, strict=True))
    return [
        (Box(q_box, seqs_box, k_box), min(known, key=lambda other: (_distance(other, (num_seqs, q, k)), other)))
        for q, q_box in zip(queries, intervals(queries, below=0), strict=True)
        for num_seqs, seqs_box in zip(seqs, intervals(seqs, below=SEQS_BELOW), strict=True)
        for k, k_box in zip(keys, intervals(keys, below=0), strict=True)
    ]


def _distance(known: Sizes, wanted: Sizes) -> float:
    """Squared, in log space; a smaller size counts twice as far: tuned for more keys serves fewer, not the reverse."""
    logs = (math.log(own / other) for own, other in zip(known, wanted, strict=True))
    return sum(log**2 if log >= 0 else 4 * log**2 for log in logs)


def _routing(grid: Iterable[tuple[Box, Sizes]], results: Mapping[Sizes, _Cell]) -> tuple[RoutingRow, ...]:
    kernels = merge_boxes((box, results[sizes].winner.kernel) for box, sizes in grid)
    planes = {(box.max_seqlen_q, box.num_seqs) for box, _ in grid}
    rows = []
    for q, seqs in planes:
        routes = {}
        for box, kernel in kernels:
            if box.max_seqlen_q[0] <= q[0] <= box.max_seqlen_q[1] and box.num_seqs[0] <= seqs[0] <= box.num_seqs[1]:
                routes[box.max_seqlen_k[0]] = kernel
        rows.append((Box(q, seqs), routes))
    return tuple(RoutingRow(box.max_seqlen_q, box.num_seqs, routes) for box, routes in merge_boxes(rows))


def _configs(grid: Sequence[tuple[Box, Sizes]], results: Mapping[Sizes, _Cell]) -> dict[str, tuple[ConfigRow, ...]]:
    rows: dict[str, list[ConfigRow]] = {}
    sources = dict(grid)
    for box, (kernel, _) in merge_boxes((box, results[sizes].winner.key) for box, sizes in grid):
        inside = {sizes for part, sizes in sources.items() if _within(part, box)}
        rows.setdefault(kernel, []).append(_row(box, [results[sizes] for sizes in sorted(inside)]))
    return {kernel: tuple(rows[kernel]) for kernel in sorted(rows)}


def _within(part: Box, box: Box) -> bool:
    pairs = itertools.zip_longest(
        (part.max_seqlen_q, part.num_seqs, part.max_seqlen_k), (box.max_seqlen_q, box.num_seqs, box.max_seqlen_k)
    )
    return all(low <= start and end <= high for (start, end), (low, high) in pairs)


def _row(box: Box, cells: Sequence[_Cell]) -> ConfigRow:
    """One row from the cells in its box: each number at the worst of them."""
    winners = [cell.winner for cell in cells]
    times = [item.us for item in winners]
    gains = [cell.rule_us / cell.winner.us for cell in cells if cell.rule_us is not None]
    measured = weakest(item.evidence for item in winners) == "measured"
    return ConfigRow(
        when=box,
        config=winners[0].config,
        evidence=weakest(item.evidence for item in winners),
        us=(min(times), max(times)),
        regret=max(cell.winner.us / cell.fastest_us for cell in cells),
        best_rule=min(gains, default=None),
        spread=max((item.spread for item in winners if item.spread is not None), default=None) if measured else None,
        samples=min(item.samples for item in winners) if measured else 0,
        error=max((item.error for item in winners if item.error is not None), default=None) if measured else None,
    )
