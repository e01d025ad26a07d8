"""`attn-tune doctor`: is this installation able to do its work?"""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..doctor import BROKEN, OK, WARNING, Check, diagnose

_STYLES = {OK: "green", WARNING: "yellow", BROKEN: "bold red"}


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False) -> None:
    """Check Triton, torch, the archs that can be compiled for, the device and the tables; exit 1 if one is broken."""
    checks: list[Check] = []
    console = Console(highlight=False, soft_wrap=True)
    for check in diagnose():
        checks.append(check)
        if not json:
            _print(console, check)
    broken = any(check.status == BROKEN for check in checks)
    if json:
        typer.echo(json_text.dumps({"ok": not broken, "checks": [asdict(check) for check in checks]}, indent=2))
    raise typer.Exit(1 if broken else 0)


def _print(console: Console, check: Check) -> None:
    line = Text.assemble((f"{check.status:8}", _STYLES[check.status]), f"{check.subject:17}{check.detail}")
    console.print(line)
    if check.fix:
        console.print(Text(f"{'':8}{'':17}fix: {check.fix}"))
