"""The `attn-tune` command: one thin verb per file."""

from __future__ import annotations

import sys

import typer

from ..evaluate.workers import WorkerStartError
from .bench import bench
from .check import check
from .doctor import doctor
from .inspect import inspect
from .lookup import lookup
from .show import show
from .sweep import sweep

app = typer.Typer(
    name="attn-tune",
    help="Tune, show and look up paged attention kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (sweep, show, lookup, check, bench, inspect, doctor):
    app.command(verb.__name__)(verb)


def main() -> None:
    """Run the command; a mistake in the input, or a worker that cannot start, is one line on standard error and exit
    status 2, never a traceback."""
    try:
        app()
    except (ValueError, OSError, WorkerStartError) as error:
        print(f"attn-tune: {error}", file=sys.stderr)
        sys.exit(2)
