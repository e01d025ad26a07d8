"""Both routes on the short cases, compiled for the architectures that tables are made for: all features everywhere.

By default a sample: every feature at once, and a few of the other cases. The slow tests compile the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import triton
from tiny_sweeps import shared_caches

from attn_tune.arch import get_arch
from attn_tune.evaluate.compile import compile_launch
from attn_tune.evaluate.compile_many import exceeded_limit
from attn_tune.kernels import get_kernel
from attn_tune.testing import CASES, Case

ARCHS = ("gfx942", "gfx950", "gfx1250", "sm_90")
ROUTES = ("paged_2d", "paged_3d")
CONFIG = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 4, "num_stages": 2}
ONE_OF = 48  # cases is in the sample, another one on each arch and route
TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


def parameters() -> Iterator[object]:
    """Every case on every arch and route, all but the sample marked slow."""
    for turn, (arch, route) in enumerate(product(ARCHS, ROUTES)):
        for index, case in enumerate(CASES):
            sampled = case.name == "every feature" or index % ONE_OF == 6 * turn
            marks = () if sampled else (pytest.mark.slow,)
            yield pytest.param(arch, route, case, marks=marks, id=f"{arch}-{route}-{case.name}")


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in shared_caches(tmp_path_factory).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("arch", "route", "case"), list(parameters()))
def test_a_case_compiles_and_fits(arch: str, route: str, case: Case) -> None:
    if arch == "gfx1250" and TRITON < (3, 7):
        pytest.skip("Triton 3.6 cannot link for gfx1250")
    spec, kernel = get_arch(arch), get_kernel(route)
    config = kernel.complete(case.complete(CONFIG), spec)
    if not spec.fp8_matrix:
        config.pop("QUERY_TERMS", None)
    for launch in kernel.plan(case.inputs("meta"), config):
        assert exceeded_limit(compile_launch(launch, spec).resources, spec) is None
