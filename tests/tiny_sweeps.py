"""Sweeps of one small family that take seconds, and compile caches that the tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.problem import AttentionFamily

FAMILY = AttentionFamily(4, 1, 64)
SHAPE = "- {num_query_heads: 4, num_kv_heads: 1, head_size: 64}\n"
OPTIONS = ("--arch", "gfx950", "--configs", "4", "--jobs", "2")

_RUN = "from attn_tune.cli import main; main()"


def shared_caches(factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of compile caches that all test workers of this run share; concurrent use is what they allow."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    return {"ATTN_TUNE_CACHE_DIR": str(base / "compiles"), "TRITON_CACHE_DIR": str(base / "triton")}


def shapes_file(directory: Path, text: str = SHAPE) -> Path:
    """A file for ``--shapes`` in the directory."""
    path = directory / "shapes.yaml"
    path.write_text(text)
    return path


def start_sweep(
    directory: Path, *arguments: str, environment: dict[str, str], before: str = "pass"
) -> subprocess.Popen[str]:
    """Start a sweep into ``table.yaml`` of a directory that holds a shapes file, as a process group of its own.

    ``before`` is code that the process runs first.
    """
    paths = ("--shapes", str(directory / "shapes.yaml"), "--out", str(directory / "table.yaml"))
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}; {_RUN}", "sweep", *OPTIONS, *paths, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | environment,
    )


def run_sweep(
    directory: Path, *arguments: str, environment: dict[str, str], code: int = 0, before: str = "pass"
) -> subprocess.CompletedProcess[str]:
    """Run such a sweep to its end, which must have the exit status ``code``."""
    process = start_sweep(directory, *arguments, environment=environment, before=before)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"{out}\n{err}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
