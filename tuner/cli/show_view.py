"""The human views of `attn-tune show`: one line per family, or a family's matrix with the legend of its configs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..evaluate.verify import table_warnings
from ..models import models_of
from ..problem import AttentionFamily
from ..store.evidence import EVIDENCE
from ..store.merged import Believed
from ..store.programs import RUN_TIME_PARAMETERS
from ..store.table import CONFIG_ORDER, ConfigRow, FamilyTable, Table
from ..store.yaml_text import Interval
from .matrix import SPLIT_MARKS, Cell, Matrix, compilations, make_matrix

_SHORT = {"paged_2d": "2D", "paged_3d": "3D"}
_STYLES = {"paged_2d": "cyan", "paged_3d": "green"}
_OTHER_STYLE = "magenta"
_MARKS = {"measured": "m", "modelled": "~", "rule": "r"}
_MEANS = {
    "measured": "timed on this arch, output checked",
    "modelled": "compiled for this arch, time predicted by a model",
    "rule": "a rule's choice, neither compiled nor timed",
}
_DECODE_BATCHES = (1, 32, 256)


def print_title(item: Believed, console: Console) -> None:
    """Print whose table this is, what it was built with, and what makes it doubtful."""
    table = item.table
    versions = ", ".join(f"{name} {value}" for name, value in table.built_with.items())
    count = f"{len(table.families)} {'family' if len(table.families) == 1 else 'families'}"
    facts = f"{table.compute_units} compute units, waves of {table.wave_size}, {count}"
    console.print(Text.assemble((table.arch, "bold"), f"  {facts}"))
    console.print(Text(f"{item.path}, built with {versions}", style="dim"), soft_wrap=True)
    for warning in table_warnings(table):
        console.print(Text(warning, style="yellow"))


def print_overview(table: Table, console: Console) -> None:
    """Print one line per family, and how to read it."""
    grid = _empty_grid()
    batches = "/".join(map(str, _DECODE_BATCHES))
    grid.add_column("\nmodel", no_wrap=True)
    grid.add_column("\nheads", no_wrap=True)
    grid.add_column("\npage", no_wrap=True, justify="right")
    grid.add_column("\nKV cache, extras")
    grid.add_column(f"3D from\n{batches}", no_wrap=True)
    for name in ("\nrows", "\nkernels", "best\nrule"):
        grid.add_column(name, no_wrap=True, justify="right")
    for rows in table.families:
        family, every = rows.family, _config_rows(rows)
        numbers = _evidence(every), str(len(compilations(rows))), _gain(every)
        facts = _heads(family), str(family.page_size), _cache_and_extras(family), _split_from(rows)
        grid.add_row(_first_model(family), *facts, *numbers)
    console.print()
    console.print(grid)
    _print_notes(
        console,
        "heads: query/KV/size on one GPU. 3D from: the max_seqlen_k from which a decode of so many sequences runs "
        "paged_3d, which splits the keys; - never. kernels: compilations needed. best rule: a hand-written rule's time "
        "over the table's, at the worst size of each row.",
        f"rows: {_marks(table.families)}.",
        "--model NAME shows routes and configs, --rows the table's text, --json everything.",
    )


def print_family(rows: FamilyTable, console: Console) -> None:
    """Print a family's matrix and its legend."""
    every = _config_rows(rows)
    mixed = len({row.evidence for row in every}) > 1
    matrix = make_matrix(rows)
    kinds = Counter(row.evidence for row in every)
    evidence = ", ".join(f"{kinds[kind]} {kind}" for kind in reversed(EVIDENCE) if kinds[kind])
    facts = [f"{evidence} rows", f"{len(matrix.letters)} kernels to compile"]
    if _gain(every):
        facts.append(f"best rule takes {_gain(every)} as long")
    console.print()
    console.print(Text(str(rows.family), style="bold"))
    if models_of(rows.family):
        console.print(Text(", ".join(models_of(rows.family))))
    console.print(Text(", ".join(facts)))
    console.print()
    for grid in _matrix_grids(matrix, mixed):
        console.print(grid)
        console.print()
    console.print(_legend(rows, matrix))


def print_family_notes(tables: Sequence[Believed], console: Console) -> None:
    """Print how to read the matrices."""
    families = [rows for item in tables for rows in item.table.families]
    _print_notes(
        console,
        "In a cell: kernel (2D, or 3D, which splits the keys), letter of its config, and how it splits: into 16 "
        "segments (·16), or into as many as make 264 programs (/264); - cannot occur. us: one call, over all sizes of "
        "the rows. best rule: a hand-written rule's time over this one, at the worst size of each row.",
        f"{_marks(families)}.",
    )


def _print_notes(console: Console, *notes: str) -> None:
    console.print()
    for note in notes:
        console.print(Text(note, style="dim"))


def _matrix_grids(matrix: Matrix, mixed: bool) -> Iterator[Grid]:
    """A grid for each run of planes with the same columns."""
    for columns, planes in groupby(matrix.planes, key=lambda plane: plane.columns):
        grid = _empty_grid()
        grid.add_column("max_\nseqlen_q", justify="right", no_wrap=True)
        grid.add_column("num_\nseqs", justify="right", no_wrap=True)
        for number, column in enumerate(columns):
            grid.add_column(f"{'' if number else 'max_seqlen_k'}\n{_up_to(column)}", no_wrap=True)
        for index, plane in enumerate(planes):
            if index:
                grid.add_row()
            for number, line in enumerate(plane.lines):
                cells = (_cell(cell, mixed) for cell in line.cells)
                grid.add_row("" if number else _span(plane.max_seqlen_q), _span(line.num_seqs), *cells)
        yield grid


def _cell(cell: Cell | None, mixed: bool) -> Text:
    if cell is None:
        return Text("-", style="dim")
    return Text(
        f"{_short(cell.kernel)} {cell.letter}{cell.split}{' ' + _MARKS[cell.evidence] if mixed else ''}",
        style=_style(cell.kernel),
    )


def _legend(rows: FamilyTable, matrix: Matrix) -> Grid:
    given = {name for _, config in matrix.letters for name, _ in config}
    names = [name for name in CONFIG_ORDER if name in given] + sorted(given - set(CONFIG_ORDER))
    grid = _empty_grid()
    grid.add_column("")
    grid.add_column("")
    for name in names:
        grid.add_column(name.replace("_", "_\n", 1) if len(name) > 8 else f"\n{name}", justify="right")
    for name in ("\nsplit", "\nrows", "\nus", "best\nrule"):
        grid.add_column(name, justify="right", no_wrap=True)
    uses = compilations(rows)
    for (kernel, config), letter in matrix.letters.items():
        own, values, style = uses[kernel, config], dict(config), _style(kernel)
        us = _range([end for row in own if row.us for end in row.us])
        numbers = [str(values.get(name, "")) for name in names]
        grid.add_row(
            Text(letter, style), Text(_short(kernel), style), *numbers, _splits(own), _evidence(own), us, _gain(own)
        )
    return grid


def _splits(rows: Sequence[ConfigRow]) -> str:
    """The segments and the programs of some rows, marked as in the cells of a matrix."""
    values = {
        mark: [row.config[name] for row in rows if name in row.config]
        for mark, name in zip(SPLIT_MARKS, RUN_TIME_PARAMETERS, strict=True)
    }
    return "\n".join(f"{mark}{_range(found)}" for mark, found in values.items() if max(found, default=1) > 1)


def _empty_grid() -> Grid:
    return Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _config_rows(rows: FamilyTable) -> list[ConfigRow]:
    return [row for config_rows in rows.configs.values() for row in config_rows]


def _heads(family: AttentionFamily) -> str:
    value = f"v{family.value_head_size}" if family.value_head_size != family.head_size else ""
    return f"{family.num_query_heads}/{family.num_kv_heads}/{family.head_size}{value}"


def _cache_and_extras(family: AttentionFamily) -> str:
    """The cache's dtype, and whatever else is not the default."""
    texts = [family.kv_dtype.removesuffix("_e4m3")]
    texts += ["per token"] if family.kv_scales == "per_token_head" else []
    texts += [f"q {family.q_dtype}"] if family.q_dtype != "bf16" else []
    texts += [family.kv_layout] if family.kv_layout != "paged" else []
    texts += [name for name in ("sinks", "softcap", "alibi", "qq_bias") if getattr(family, name)]
    texts += [f"window {family.sliding_window}"] if family.sliding_window else []
    return " ".join(texts if family.causal else [*texts, "not causal"])


def _first_model(family: AttentionFamily) -> str:
    names = models_of(family)
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0] + more if names else "-"


def _split_from(rows: FamilyTable) -> str:
    """The max_seqlen_k from which paged_3d answers a decode, at some batch sizes."""
    return "/".join(str(next(_split_starts(rows, num_seqs), "-")) for num_seqs in _DECODE_BATCHES)


def _split_starts(rows: FamilyTable, num_seqs: int) -> Iterator[int]:
    for row in rows.routing:
        if row.max_seqlen_q[0] == 1 and row.num_seqs[0] <= num_seqs <= row.num_seqs[1]:
            yield from (start for start, kernel in row.routes.items() if kernel == "paged_3d")


def _evidence(rows: Iterable[ConfigRow]) -> str:
    """How many rows there are of each kind of evidence: ``"12m 88~"``."""
    counts = Counter(row.evidence for row in rows)
    return " ".join(f"{counts[kind]}{_MARKS[kind]}" for kind in reversed(EVIDENCE) if counts[kind])


def _marks(families: Sequence[FamilyTable]) -> str:
    kinds = {row.evidence for rows in families for row in _config_rows(rows)}
    return ". ".join(f"{_MARKS[kind]} {kind}: {_MEANS[kind]}" for kind in reversed(EVIDENCE) if kind in kinds)


def _gain(rows: Iterable[ConfigRow]) -> str:
    return _range([row.best_rule for row in rows if row.best_rule is not None], "{:.2f}", "x")


def _range(values: Sequence[float], form: str = "{:.4g}", unit: str = "") -> str:
    if not values:
        return ""
    low, high = (form.format(value) if value < 1000 else f"{value:.0f}" for value in (min(values), max(values)))
    return (low if low == high else f"{low}-{high}") + unit


def _span(interval: Interval) -> str:
    low, high = interval
    return f"{low}+" if high == math.inf else f"{low}" if low == high else f"{low}-{high:.0f}"


def _up_to(column: Interval) -> str:
    low, high = column
    return f"<= {high:.0f}" if high < math.inf else f"> {low - 1}" if low > 1 else "any"


def _short(kernel: str) -> str:
    return _SHORT.get(kernel, kernel)


def _style(kernel: str) -> str:
    return _STYLES.get(kernel, _OTHER_STYLE)
