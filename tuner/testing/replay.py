"""Search a recorded set of measurements again, without a GPU: what a strategy finds, and how much it times for that.

The record is the journal of an exhaustive sweep. It answers from the screening times of all configurations, the final
included, so that a strategy and the exhaustive search are compared on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..arch import get_arch
from ..evaluate.measure import Measurement
from ..evaluate.resources import Resources
from ..problem import AttentionProblem
from ..search.measure_cell import SCREEN_POLICY
from ..search.predictions import Compilation
from ..search.staged import Effort, Identity, Key, identity, search_cell
from ..store.trial import Trial


@dataclass(frozen=True)
class RecordedCell:
    """A problem, what was compiled for its family, and the trial of every configuration that was timed."""

    problem: AttentionProblem
    arch: str
    compiled: Mapping[Compilation, Resources]
    trials: Mapping[Identity, Trial]

    @property
    def best_us(self) -> float:
        """The shortest time on record, in microseconds."""
        return min(trial.us for trial in self.trials.values() if trial.us is not None)


@dataclass
class Record:
    """Answers a search from a recorded cell and notes what it asks for."""

    cell: RecordedCell
    timed: set[Identity] = field(default_factory=set)

    def measure(self, keys: Sequence[Key], careful: bool) -> list[Measurement]:
        """The recorded measurements; what was never timed counts as timed, and does not run."""
        self.timed.update(map(identity, keys))
        trials = [self.cell.trials.get(identity(key)) for key in keys]
        return [
            Measurement(trial.status, trial.us, trial.spread, trial.samples, trial.error)
            if trial
            else Measurement("pruned", message="not on record")
            for trial in trials
        ]


@dataclass(frozen=True)
class Replayed:
    """What a strategy found in a cell, and at what price."""

    cell: RecordedCell
    us: float
    timed: int

    @property
    def ratio(self) -> float:
        """The time of the strategy's choice over the best on record."""
        return self.us / self.cell.best_us

    @property
    def share(self) -> float:
        """How much of what is on record was timed."""
        return self.timed / len(self.cell.trials)


def recorded_cells(trials: Iterable[Trial]) -> list[RecordedCell]:
    """The cells of an exhaustive sweep's journal, in its order."""
    compiled: dict[tuple[str, object], dict[Compilation, Resources]] = {}
    timed: dict[tuple[str, AttentionProblem], dict[Identity, Trial]] = {}
    for trial in trials:
        key = trial.kernel, tuple(trial.config.items())
        if trial.sizes is None:
            if trial.status == "ok" and trial.resources is not None:
                compiled.setdefault((trial.arch, trial.family), {})[key] = Resources.from_dict(trial.resources)
        elif trial.environment.get("policy") == SCREEN_POLICY:
            problem = AttentionProblem(trial.family, *trial.sizes)
            timed.setdefault((trial.arch, problem), {})[identity(key)] = trial
    return [
        RecordedCell(problem, arch, compiled.get((arch, problem.family), {}), own)
        for (arch, problem), own in timed.items()
    ]


def replay(cell: RecordedCell, search: Callable[..., Mapping[Key, Measurement]] = search_cell) -> Replayed:
    """Run a strategy with the default effort on a recorded cell.

    Raises:
        ValueError: the strategy found nothing that runs.
    """
    record = Record(cell)
    finalists = search(cell.problem, cell.compiled, get_arch(cell.arch), record.measure, Effort())
    times = [item.us for item in finalists.values() if item.status == "ok" and item.us is not None]
    if not times:
        raise ValueError(f"nothing runs at {cell.problem}")
    return Replayed(cell, min(times), len(record.timed))
