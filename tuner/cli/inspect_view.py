"""The human view of `attn-tune inspect`: a column per launch, then the model's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..evaluate.resources import InstructionMix, Resources

if TYPE_CHECKING:
    from .inspect import Inspection

_BY_WIDTH = {
    "global loads": "global_loads",
    "async copies to LDS": "async_copies",
    "global stores": "global_stores",
    "LDS reads": "lds_reads",
    "LDS writes": "lds_writes",
}
_TOTALS = {
    "transcendental": "transcendental",
    "other vector": "vector",
    "scalar": "scalar",
    "spill loads, stores": "scratch",
    "barriers": "barriers",
    "waits": "waits",
    "other": "other",
}


def print_inspection(found: Inspection, files: Sequence[Path], console: Console) -> None:
    """Print where the config comes from, the table of launches, the prediction, and the files written."""
    config = ", ".join(f"{name} {value}" for name, value in found.config.items())
    console.print(Text(f"{found.problem} on {found.arch.name}", style="bold"))
    console.print(Text.assemble((found.route, "bold cyan"), f"  {config}"))
    if found.overridden:
        console.print(Text("not the table's answer: the route or the config was given", style="yellow"))
    else:
        step = next((step for step in found.answer.chain if step.startswith("row ")), found.answer.chain[-1])
        console.print(Text(f"{found.answer.source}: {step}", style="dim"))
    console.print()
    console.print(_launches(found))
    console.print()
    for line in _prediction(found):
        console.print(Text(line))
    if files:
        names = ", ".join(path.name for path in files)
        console.print(Text(f"\n{len(files)} files in {files[-1].parent}: {names}"))


def _launches(found: Inspection) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for launch in found.launches:
        table.add_column(launch.object.name, header_style="bold cyan")
    every = [launch.object.resources for launch in found.launches]
    for label, cells in _resource_rows(found).items():
        table.add_row(label, *cells)
    table.add_row("")
    table.add_row(Text("per wave and pass of", style="bold"), *(_counted(item) for item in every))
    for label, counts in _mix_rows([item.loop for item in every]).items():
        if any(counts):
            table.add_row(label, *counts)
    return table


def _resource_rows(found: Inspection) -> dict[str, list[Text | str]]:
    arch = found.arch
    rows: dict[str, list[Text | str]] = {}
    for launch in found.launches:
        resources, grid = launch.object.resources, launch.launch.grid
        occupancy = found.occupancy(launch)
        waves = f"{occupancy * resources.num_warps / arch.simds_per_unit:g} of {arch.max_waves_per_simd} waves per SIMD"
        shape = " x ".join(str(size) for size in grid if size > 1) or "1"
        cells: dict[str, Text | str] = {
            "grid": f"{shape} = {math.prod(grid):,} programs",
            "threads per program": f"{resources.num_warps * arch.wave_size} ({resources.num_warps} waves)",
            "registers": f"{resources.registers} of {arch.max_registers}",
            "spilled registers": _warning(f"{resources.spills}", resources.spills > 0),
            "scratch": _warning(f"{resources.scratch_bytes} bytes per thread", resources.scratch_bytes > 0),
            "LDS": f"{resources.lds_bytes:,} of {arch.lds_per_program:,} bytes",
            "programs per unit": _warning(f"{occupancy} ({waves})" if occupancy else "none fits", not occupancy),
        }
        if resources.tensor_memory_columns:
            cells["tensor memory"] = f"{resources.tensor_memory_columns} columns"
        for label, cell in cells.items():
            rows.setdefault(label, []).append(cell)
    return rows


def _warning(text: str, bad: bool) -> Text:
    return Text(text, style="bold red" if bad else "")


def _counted(resources: Resources) -> str:
    if not resources.loops:
        return "the whole code"
    return "the inner loop" if len(resources.loops) == 1 else f"the first of {len(resources.loops)} inner loops"


def _mix_rows(mixes: Sequence[InstructionMix]) -> dict[str, list[str]]:
    rows = {"matrix": [_by_name(mix.matrix) for mix in mixes]}
    for label, field in _BY_WIDTH.items():
        rows[label] = [_by_width(getattr(mix, field)) for mix in mixes]
    rows["conversions"] = [_by_name(mix.conversions) for mix in mixes]
    for label, field in _TOTALS.items():
        rows[label] = [f"{count:4}" if (count := getattr(mix, field)) else "" for mix in mixes]
    return rows


def _by_name(counts: Mapping[str, int]) -> str:
    return "\n".join(f"{count:4} {name}" for name, count in sorted(counts.items()))


def _by_width(counts: Mapping[int, int]) -> str:
    lines = [f"{counts[width]:4} of {width} bytes" if width else f"{counts[0]:4} of a tile" for width in sorted(counts)]
    return "\n".join(reversed(lines))


def _prediction(found: Inspection) -> list[str]:
    us, terms = found.prediction.us, found.prediction.terms
    if not math.isfinite(us):
        return ["predicted: cannot be launched, since no program fits a unit"]
    loop, memory = f"loop {terms['loop']:.1f}", f"memory {terms['memory']:.1f}"
    longer = f"{loop} ({memory})" if terms["loop"] >= terms["memory"] else f"{memory} ({loop})"
    parts = [f"launch {terms['launch']:.1f}", f"prologue {terms['prologue']:.1f}", longer]
    if terms["reduce"]:
        parts.append(f"reduce {terms['reduce']:.1f}")
    return [
        f"predicted, not measured: {us:.1f} us",
        f"  = {' + '.join(parts)}",
        f"one tile: {terms['tile_chain']:.2f} us in a program alone; of its unit's time {terms['tile_pipes']:.2f} us "
        f"(busiest pipe), {terms['tile_fetch']:.2f} us (memory)",
        f"one pass of the inner loop covers {found.tiles_per_pass} tile{'s' * (found.tiles_per_pass > 1)}",
    ]
