"""How often a repeated sweep changes the winner, and what that costs: two journals of the same cells.

    python benchmarks/repeated_sweep.py FIRST.trials.jsonl.xz SECOND.trials.jsonl.xz

Of each cell that has a final in both: the winners by the rules that tables are built by. The cost of a change is the
time that the other sweep measured for this one's winner over that of its own, in a final if it was there, else in the
screening; taken both ways.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from attn_tune.arch import get_arch
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.measure_cell import RACE_POLICY, SCREEN_POLICY
from attn_tune.search.staged import Identity, identity, rule_keys
from attn_tune.store.journal import Journal
from attn_tune.store.table import Sizes
from attn_tune.store.trial import Trial
from attn_tune.store.winner import Candidate, comparable, winner

Cell = tuple[str, AttentionFamily, Sizes]
Cells = dict[Cell, dict[Identity, Trial]]


def read(path: Path) -> tuple[Cells, Cells]:
    """The valid trials of each cell: finals, and screenings."""
    finals: Cells = {}
    screened: Cells = {}
    for trial in Journal(path).load().values():
        into = {RACE_POLICY: finals, SCREEN_POLICY: screened}.get(trial.environment["policy"])
        if into is not None and trial.sizes is not None and trial.status == "ok":
            cell = trial.arch, trial.family, trial.sizes
            into.setdefault(cell, {})[identity((trial.kernel, tuple(trial.config.items())))] = trial
    return finals, screened


def winner_of(cell: Cell, trials: Mapping[Identity, Trial]) -> Identity:
    """The winner of a final."""
    arch, family, sizes = cell
    rules = {identity(key): name for name, key in rule_keys(AttentionProblem(family, *sizes), get_arch(arch)).items()}
    pool = [
        Candidate(item.kernel, item.config, item.us or 0.0, "measured", item.spread, item.samples, item.error,
                  (rules[key],) if key in rules else ())
        for key, item in trials.items()
    ]  # fmt: skip
    best = winner(comparable(pool))
    return identity((best.kernel, tuple(best.config.items())))


def cost(mine: Identity, theirs: Identity, *journals: Mapping[Identity, Trial]) -> float | None:
    """The time of one configuration over that of another in the first journal that has both."""
    for trials in journals:
        first, second = trials.get(mine), trials.get(theirs)
        if first is not None and second is not None and first.us and second.us:
            return first.us / second.us
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the winners of two sweeps.")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    (finals, screened), (other_finals, other_screened) = read(options.first), read(options.second)
    common = sorted(finals.keys() & other_finals.keys(), key=str)
    if not common:
        parser.error("no cell has a final in both journals")
    costs: list[float] = []
    changed = unknown = 0
    print(f"{'changed cells':75} {'cost in second':>14} {'in first':>9}")
    for cell in common:
        mine, theirs = winner_of(cell, finals[cell]), winner_of(cell, other_finals[cell])
        if mine == theirs:
            costs += [1.0, 1.0]
            continue
        changed += 1
        pair = (
            cost(mine, theirs, other_finals[cell], other_screened.get(cell, {})),
            cost(theirs, mine, finals[cell], screened.get(cell, {})),
        )
        unknown += pair.count(None)
        costs += [value for value in pair if value is not None]
        texts = ["-" if value is None else f"{value:.3f}" for value in pair]
        print(f"{AttentionProblem(cell[1], *cell[2])!s:75} {texts[0]:>14} {texts[1]:>9}")
    mean = math.exp(sum(map(math.log, costs)) / len(costs)) if costs else math.nan
    print(
        f"{changed} of {len(common)} winners changed ({changed / len(common):.0%}); cost over all cells: geomean "
        f"{mean:.4f}, worst {max(costs, default=math.nan):.3f}; {unknown} costs unknown"
    )


if __name__ == "__main__":
    main()
