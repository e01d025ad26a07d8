"""`attn-tune check`: are tables whole, and can what they say be launched?"""

from __future__ import annotations

import json as json_text
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.text import Text

from ..arch import find_arch
from ..evaluate.compile_many import compile_configs
from ..evaluate.verify import installed_triton, launch_faults, names_another_arch, table_warnings
from ..search.modelled import Progress
from ..search.tables import row_requests
from ..store.evidence import EVIDENCE
from ..store.load import read_with_faults
from ..store.overlay import all_table_paths
from ..store.table import Table, TableError
from .arguments import Json
from .progress import progress_reporter

_COMPILE_SECONDS = 120.0

Files = Annotated[
    Optional[list[Path]],  # noqa: UP045 - typer reads it at run time
    typer.Argument(help="Tables to check; default: the shipped ones and the user's.", show_default=False),
]


@dataclass(frozen=True)
class Report:
    """What is wrong with a file, what is doubtful, and what it holds."""

    path: Path
    faults: list[TableError]
    warnings: list[str] = field(default_factory=list)
    families: int = 0
    table: Table | None = field(default=None, repr=False)
    evidence: dict[str, int] = field(default_factory=dict)  # config rows by kind of evidence


def check(
    files: Files = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Also compile every row with the Triton installed here: minutes.")
    ] = False,
    jobs: Annotated[Optional[int], typer.Option(help="Processes that compile; default: all cores.")] = None,  # noqa: UP045
    json: Json = False,
) -> None:
    """Check tables: every field, that rows cover all sizes once, and that configs can be launched.

    Prints every fault as FILE:LINE: FIELD: REASON. Exit status: 1 if there is one, else 0; warnings do not count.
    """
    paths = files or all_table_paths()
    reports = [check_file(path) for path in paths]
    if compiled:
        with progress_reporter(Console(stderr=True, soft_wrap=True, highlight=False)) as progress:
            reports = [_compiled(report, jobs, progress) for report in reports]
    faulty = any(report.faults for report in reports)
    if json:
        out = {"ok": not faulty, "files": [_to_dict(report) for report in reports]}
        typer.echo(json_text.dumps(out, indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for report in reports:
            _print(report, console)
        if not reports:
            console.print("no tables: none are shipped, and the user's directory has none")
    raise typer.Exit(1 if faulty else 0)


def check_file(path: Path) -> Report:
    """Everything that can be said about a table file without compiling."""
    try:
        table, faults = read_with_faults(path)
    except FileNotFoundError:
        return Report(path, [TableError(path, 0, "", "there is no such file")])
    except TableError as fault:
        return Report(path, [fault])
    faults = sorted(
        [*faults, *names_another_arch(table, path), *launch_faults(table, path)], key=lambda item: item.line
    )
    return Report(path, faults, table_warnings(table), len(table.families), table, _evidence(table))


def _compiled(report: Report, jobs: int | None, progress: Progress) -> Report:
    """The report with what this installation's Triton does not compile, or makes too large to launch."""
    arch = find_arch(report.table.arch) if report.table is not None else None
    if report.table is None or arch is None:
        return report
    rows = row_requests(report.table)
    outcomes = compile_configs(rows, arch=arch, time_limit=_COMPILE_SECONDS, jobs=jobs)
    faults = []
    for done, (request, outcome) in enumerate(outcomes, 1):
        progress(done, len(rows), f"compiling {report.path.name}")
        if outcome.status != "ok":
            reason = f"Triton {installed_triton()}: {outcome.status} {outcome.message}"
            faults.append(TableError(report.path, rows[request].line, f"configs.{request.kernel}", reason))
    return replace(report, faults=sorted([*report.faults, *faults], key=lambda item: item.line))


def _evidence(table: Table) -> dict[str, int]:
    rows = [row for family in table.families for configs in family.configs.values() for row in configs]
    counts = Counter(row.evidence for row in rows)
    return {kind: counts[kind] for kind in reversed(EVIDENCE) if counts[kind]}


def _print(report: Report, console: Console) -> None:
    for fault in report.faults:
        console.print(Text(str(fault), style="red"))
    for warning in report.warnings:
        console.print(Text.assemble(f"{report.path}: ", ("warning: ", "yellow"), warning))
    if report.faults:
        console.print(Text(f"{report.path}: {_count(len(report.faults), 'fault')}", style="bold red"))
        return
    rows = sum(report.evidence.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.evidence.items()) or "none"
    text = f"{_count(report.families, 'family', 'families')}, {_count(rows, 'config row')} ({kinds})"
    console.print(Text.assemble(f"{report.path}: ", ("ok", "green"), f", {text}"))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _to_dict(report: Report) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "ok": not report.faults,
        "faults": [{"line": item.line, "field": item.field, "reason": item.reason} for item in report.faults],
        "warnings": report.warnings,
        "families": report.families,
        "config_rows": report.evidence,
    }
