"""What the model's choices cost against recorded measurements; needs no GPU.

    python benchmarks/model_error.py [--journal benchmarks/data/sm_90.trials.jsonl.xz]

The journal is one of a measured sweep, which also holds what its compilations came to. Of each size: the time of the
configuration that the model predicts to be the fastest of those screened, over the time of the one that was.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attn_tune.arch import get_arch
from attn_tune.evaluate.model import predict
from attn_tune.evaluate.resources import Resources
from attn_tune.kernels import get_kernel
from attn_tune.problem import AttentionProblem
from attn_tune.search.bench import geomean
from attn_tune.search.measure_cell import SCREEN_POLICY
from attn_tune.search.predictions import compilation
from attn_tune.search.staged import identity, rule_keys
from attn_tune.store.journal import Journal
from attn_tune.store.trial import Trial
from attn_tune.store.winner import Candidate, winner

JOURNAL = Path(__file__).parent / "data" / "sm_90.trials.jsonl.xz"
FEWEST = 8  # timings that a size must have


@dataclass(frozen=True)
class Size:
    """One size: the pick's time over the best, its predicted over its measured time, the best rule's over its time."""

    problem: AttentionProblem
    over_best: float
    predicted: float
    rule: float | None


def sizes_of(trials: list[Trial]) -> Iterator[Size]:
    """The sizes of a journal."""
    resources = {
        (trial.family, compilation(trial.kernel, trial.config)): Resources.from_dict(trial.resources)
        for trial in trials
        if trial.sizes is None and trial.resources is not None
    }
    screened: dict[AttentionProblem, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.sizes is not None and trial.us is not None and trial.environment["policy"] == SCREEN_POLICY:
            screened[AttentionProblem(trial.family, *trial.sizes)].append(trial)
    for problem, own in screened.items():
        arch = get_arch(own[0].arch)
        known = [trial for trial in own if (trial.family, compilation(trial.kernel, trial.config)) in resources]
        if len(known) < FEWEST:
            continue

        candidates = [
            Candidate(
                trial.kernel,
                trial.config,
                predict(
                    get_kernel(trial.kernel).work(problem, trial.config),
                    resources[trial.family, compilation(trial.kernel, trial.config)],
                    arch,
                ).us,
                "modelled",
            )
            for trial in known
        ]
        pick = winner(candidates)  # equal predictions are common: as in a table, the simpler configuration wins
        us = known[candidates.index(pick)].us or 0.0
        rules = {identity(key) for key in rule_keys(problem, arch).values()}
        of_rules = [item.us or 0.0 for item in own if identity((item.kernel, tuple(item.config.items()))) in rules]
        best = min(trial.us or 0.0 for trial in known)
        yield Size(problem, us / best, pick.us / us, min(of_rules) / us if of_rules else None)


def kind(problem: AttentionProblem) -> str:
    """Decode, verify or prefill, by the query length."""
    return "decode" if problem.max_seqlen_q == 1 else "verify" if problem.max_seqlen_q <= 16 else "prefill"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="trials of a measured sweep")
    sizes = list(sizes_of(list(Journal(parser.parse_args().journal).load().values())))
    if not sizes:
        raise SystemExit("the journal has no measured size")
    groups: dict[str, list[Size]] = defaultdict(list)
    for size in sizes:
        for name in ("all", kind(size.problem), str(size.problem.family)):
            groups[name].append(size)
    print(f"{'':62} {'sizes':>5} {'pick / best':>11} {'90 %':>5} {'worst':>5} {'pred / meas':>11} {'rule / pick':>11}")
    for name, items in groups.items():
        costs = sorted(size.over_best for size in items)
        print(
            f"{name:62} {len(items):5} {geomean(costs):11.3f} {costs[int(0.9 * len(costs))]:5.2f} {costs[-1]:5.2f} "
            f"{geomean(size.predicted for size in items):11.2f} {geomean(size.rule for size in items):11.2f}"
        )


if __name__ == "__main__":
    main()
