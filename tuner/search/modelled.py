"""Tune without the GPU: compile what looks promising, predict from the compiled resources, keep the best.

Every compilation is a trial in the journal, so a run that was stopped goes on where it was: the same proposals follow
from the same trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version

from .. import __version__
from ..arch import ArchSpec
from ..evaluate.compile_many import CompileOutcome, CompileRequest, compile_configs
from ..evaluate.resources import Resources
from ..evaluate.source import kernel_source_hash
from ..evaluate.workers import TaskRunner, run_tasks
from ..problem import AttentionFamily
from ..store.build import Candidate, build_family
from ..store.journal import Journal
from ..store.table import FamilyTable, Sizes
from ..store.trial import Trial
from .grid import size_grid
from .predictions import Compilation, compilation, predicted_candidates
from .propose import first_round, next_round
from .tables import table_config

ROUNDS = 3
FIRST_SHARE = 1 / 2  # of a family's new compilations in the first round; the others share the rest
TOLERANCE = 0.02  # a table may be this much slower than the best to use fewer compilations

Progress = Callable[[int, int, str], None]
"""Called with trials done, trials known of so far, and what is going on."""


@dataclass
class Compiled:
    """What is known of one family: the resources of what compiled, and the status of all that was tried."""

    resources: dict[Compilation, Resources] = field(default_factory=dict)
    status: dict[Compilation, str] = field(default_factory=dict)


@cache
def _triton_version() -> str:
    return version("triton")  # reads the installation's files: once, not for every trial


def environment() -> dict[str, str]:
    """The versions that a cross-compiled trial depends on."""
    return {
        "attn_tune": __version__,
        "triton": _triton_version(),
        "kernels": kernel_source_hash(),
        "policy": "cross-compile",
    }


def compile_families(
    families: Sequence[AttentionFamily],
    arch: ArchSpec,
    journal: Journal,
    *,
    configs_per_family: int,
    time_limit: float,
    jobs: int | None,
    runner: TaskRunner = run_tasks,
    known: Mapping[str, Trial] | None = None,
    deadline: float | None = None,
    progress: Progress = lambda done, total, text: None,
) -> tuple[dict[AttentionFamily, Compiled], bool]:
    """Compile candidates of every family in rounds; returns what is known of each, and whether all rounds were done.

    ``known`` are the journal's trials, if they were loaded already. ``deadline`` is a ``time.monotonic()`` value at
    which the run stops with what it and earlier runs have; ``time_limit`` is in seconds per compilation. What exceeded
    the limit of an earlier run is compiled again if this one's is longer.

    Raises:
        JournalError: the journal cannot be read or written.
    """
    known = journal.load() if known is None else known
    state = {family: Compiled() for family in families}
    done = 0
    for number in range(ROUNDS):
        requests: list[CompileRequest] = []
        for index, family in enumerate(families):
            if deadline is not None and time.monotonic() > deadline:
                return _with_all_known(state, known, arch), False
            progress(done, done + len(requests), f"round {number + 1} of {ROUNDS}: ranking {index + 1}/{len(families)}")
            for kernel, items in _propose(family, arch, state[family], number, configs_per_family):
                trial = known.get(_trial(family, kernel, items, arch).identity)
                if trial is None or trial.status == "timeout":  # the compile cache knows how long it was waited for
                    requests.append(CompileRequest(kernel, family, items))
                else:
                    _note(state[family], (kernel, items), trial)
                    done += 1
        total = done + len(requests)
        outcomes = compile_configs(requests, arch=arch, time_limit=time_limit, jobs=jobs, runner=runner)
        try:
            for request, outcome in outcomes:
                trial = _trial(request.family, request.kernel, request.config, arch, outcome)
                if trial != known.get(trial.identity):
                    journal.append(trial)
                _note(state[request.family], (request.kernel, request.config), trial)
                done += 1
                progress(done, total, f"round {number + 1} of {ROUNDS}: compiling")
                if deadline is not None and time.monotonic() > deadline:
                    return _with_all_known(state, known, arch), False
        finally:
            outcomes.close()
    return state, True


def modelled_table(family: AttentionFamily, compiled: Mapping[Compilation, Resources], arch: ArchSpec) -> FamilyTable:
    """The table of a family from the predictions of its compiled configurations on the size grid.

    Raises:
        ValueError: nothing compiled, so no cell has a valid candidate.
    """
    cells: dict[Sizes, list[Candidate]] = {}
    for problem in size_grid(family):
        candidates = list(predicted_candidates(problem, compiled, arch))
        limit = min((item.us for item in candidates), default=0.0) * (1 + TOLERANCE)
        cells[problem.sizes] = [
            replace(item, config=table_config(item.kernel, item.config, problem, arch))
            for item in candidates
            if item.us <= limit or item.rules
        ]
    return build_family(family, cells, TOLERANCE)


def _propose(family: AttentionFamily, arch: ArchSpec, compiled: Compiled, number: int, limit: int) -> list[Compilation]:
    first = round(limit * FIRST_SHARE)
    if number == 0:
        return first_round(family, arch, first)
    return next_round(family, arch, compiled.resources, compiled.status.keys(), (limit - first) // (ROUNDS - 1))


def _with_all_known(
    state: dict[AttentionFamily, Compiled], known: Mapping[str, Trial], arch: ArchSpec
) -> dict[AttentionFamily, Compiled]:
    """The state with the journal's trials of rounds that this run did not come to: the best so far is of all runs."""
    for trial in known.values():
        key = compilation(trial.kernel, trial.config)
        if (
            trial.family in state
            and key not in state[trial.family].status
            and _trial(trial.family, *key, arch).identity == trial.identity
        ):
            _note(state[trial.family], key, trial)
    return state


def _note(compiled: Compiled, key: Compilation, trial: Trial) -> None:
    compiled.status[key] = trial.status
    if trial.status == "ok" and trial.resources is not None:
        compiled.resources[key] = Resources.from_dict(trial.resources)


def _trial(
    family: AttentionFamily,
    kernel: str,
    items: tuple[tuple[str, int], ...],
    arch: ArchSpec,
    outcome: CompileOutcome | None = None,
) -> Trial:
    return Trial(
        family=family,
        sizes=None,
        kernel=kernel,
        config=dict(items),
        arch=arch.name,
        compute_units=arch.compute_units,
        status=outcome.status if outcome else "pruned",
        evidence="modelled",
        message=outcome.message if outcome else "",
        resources=outcome.resources[0].to_dict() if outcome and outcome.resources else None,
        environment=environment(),
    )
