"""Kernels run on Triton's interpreter, in a child process.

Whether ``triton.jit`` compiles or interprets is decided when a kernel's module is imported, and other tests of the same
process compile for real. So ``TRITON_INTERPRET`` is set for the child alone, and plain ``pytest`` runs everything.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest


def _start_child() -> ProcessPoolExecutor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("OMP_NUM_THREADS", "1")  # one test worker per core already
        # NumPy warns of the NaN that masked rows pass through.
        patch.setenv("PYTHONWARNINGS", "ignore::RuntimeWarning")
        child = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        child.submit(int).result()  # the process starts with its first task
        return child


@pytest.fixture(scope="session")
def interpret() -> Iterator[Callable[..., Any]]:
    """``interpret(function, *args)``: the result of a module-level function called where kernels are interpreted."""
    child = _start_child()

    def call(function: Callable[..., Any], *args: Any) -> Any:
        nonlocal child
        try:
            return child.submit(function, *args).result()
        except BrokenProcessPool:  # a wild pointer ends the child: this test fails, the next gets another
            child.shutdown()
            child = _start_child()
            raise

    yield call
    child.shutdown()
