"""The table against the baseline rules: one run, one kernel source, interleaved times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..arch import ArchSpec
from ..cells import Cell as BenchmarkCell
from ..evaluate.compile_many import CompileRequest, compile_configs
from ..evaluate.measure import Cell, MeasureTask, measure
from ..evaluate.workers import SoleWorker
from ..runtime.answer import Answer
from ..runtime.lookup import get_config
from .modelled import Progress
from .predictions import compilation
from .staged import Key, identity, rule_keys

_CELL_SECONDS = 180.0


@dataclass(frozen=True)
class CellResult:
    """Microseconds of the table's answer and of each rule in one cell; None or missing where one failed."""

    name: str
    us: float | None
    source: str
    route: str
    config: dict[str, int]
    rules: dict[str, float] = field(default_factory=dict)
    message: str = ""

    @property
    def ratio(self) -> float | None:
        """The best rule's time over the table's; None if the table's answer failed or no rule ran."""
        return min(self.rules.values()) / self.us if self.us and self.rules else None

    def against(self, rule: str) -> float | None:
        """One rule's time over the table's."""
        return self.rules[rule] / self.us if self.us and rule in self.rules else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields with the ratio."""
        return vars(self) | {"ratio": self.ratio}


def bench_cells(cells: Sequence[BenchmarkCell], arch: ArchSpec, progress: Progress) -> Iterator[CellResult]:
    """Time each cell's candidates against each other, in a worker that is replaced when one of them hangs."""
    plans = [_candidates(cell, arch) for cell in cells]
    _compile_ahead(plans, cells, arch, progress)
    with SoleWorker(measure) as worker:
        for done, (cell, (answer, table_key, rules)) in enumerate(zip(cells, plans, strict=True)):
            progress(done, len(cells), cell.name)
            keys = list({identity(key): key for key in [table_key, *rules.values()]}.values())
            task = MeasureTask(Cell(cell.problem, arch.name, cell.query_lens, cell.kv_lens), tuple(keys), True)
            outcome = worker.ask(task, _CELL_SECONDS)
            if outcome.value is None:
                worker.close()  # after an error, too: the GPU's context may be lost, and every later cell with it
            times: dict[Any, float | None] = {}
            message = outcome.message
            for key, item in zip(keys, outcome.value or (), strict=False):
                times[identity(key)] = item.us if item.status == "ok" else None
                message = message or item.message
            known = {name: times.get(identity(key)) for name, key in rules.items()}
            yield CellResult(
                cell.name,
                times.get(identity(table_key)),
                answer.source,
                answer.route,
                dict(answer.config),
                {name: us for name, us in known.items() if us is not None},
                message,
            )
        progress(len(cells), len(cells), "done")


def _candidates(cell: BenchmarkCell, arch: ArchSpec) -> tuple[Answer, Key, dict[str, Key]]:
    """The table's answer, as a key too, and each rule's key."""
    answer = get_config(
        arch=arch.name,
        **vars(cell.problem.family),
        num_seqs=cell.problem.num_seqs,
        max_seqlen_q=cell.problem.max_seqlen_q,
        max_seqlen_k=cell.problem.max_seqlen_k,
        num_tokens=cell.problem.num_tokens,
        total_seqlen_k=sum(cell.kv_lens or ()),
    )
    return answer, (answer.route, tuple(answer.config.items())), rule_keys(cell.problem, arch)


def _compile_ahead(
    plans: Sequence[tuple[Answer, Key, dict[str, Key]]], cells: Sequence[BenchmarkCell], arch: ArchSpec,
    progress: Progress,
) -> None:  # fmt: skip
    """Compile everything on all cores, into the cache that Triton's launches read."""
    requests = {
        CompileRequest(key[0], cell.problem.family, compilation(key[0], dict(key[1]))[1])
        for cell, (_, table_key, rules) in zip(cells, plans, strict=True)
        for key in (table_key, *rules.values())
    }
    ordered = sorted(requests, key=str)
    for done, _ in enumerate(compile_configs(ordered, arch=arch, time_limit=120.0), 1):
        progress(done, len(ordered), "compiling")


def geomean(values: Iterable[float | None]) -> float:
    """Geometric mean of the values that are there; NaN of none."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
