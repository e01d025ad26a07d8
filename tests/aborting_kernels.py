"""A kernel module that takes down the process that compiles it: every worker, but not the process of the tests."""

from __future__ import annotations

import multiprocessing
import os
import sys

import triton
import triton.language as tl

if multiprocessing.parent_process() is not None:
    print("LLVM ERROR: cannot select", file=sys.stderr, flush=True)
    os.abort()


@triton.jit
def aborting_kernel(output):
    tl.store(output, 1.0)
