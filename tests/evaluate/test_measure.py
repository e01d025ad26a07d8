"""Measuring on Triton's interpreter: what is checked, and what becomes of a faulty candidate."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import faulty_kernels
import pytest
import torch

from attn_tune.arch import get_arch
from attn_tune.evaluate import measure as measure_module
from attn_tune.evaluate.measure import Cell, Measurement, MeasureTask, measure, prepare
from attn_tune.kernels.inputs import TORCH_DTYPES
from attn_tune.kernels.reference import reference_attention
from attn_tune.problem import AttentionFamily, AttentionProblem

FAMILY = AttentionFamily(2, 1, 64)
CELL = Cell(AttentionProblem(FAMILY, 2, 2, 40), "sm_90")
MIXED = Cell(AttentionProblem(FAMILY, 3, 4, 70, 6), "sm_90", (1, 1, 4), (70, 33, 5))
CONFIG = (
    ("BLOCK_M", 16), ("TILE_SIZE", 32), ("NUM_SEGMENTS", 2), ("num_warps", 4), ("num_stages", 2),
)  # fmt: skip

Interpret = Callable[..., Any]


def measured(cell: Cell, kernels: list[str], careful: bool = False) -> list[Measurement]:
    """Measure kernels on the interpreter, whose time does not allow for sets that outgrow a real cache."""
    faulty_kernels.register_all()
    measure_module.MAX_SETS = 1
    return measure(MeasureTask(cell, tuple((kernel, CONFIG) for kernel in kernels), careful))


ROUTES = pytest.mark.parametrize("route", ["paged_2d", "paged_3d"])


@pytest.mark.parametrize(
    "cell",
    [CELL, Cell(AttentionProblem(AttentionFamily(2, 1, 64, kv_dtype="fp8"), 2, 2, 40), "gfx950"), MIXED],
    ids=["uniform", "fp8", "mixed"],
)
@ROUTES
def test_a_sound_candidate_is_ok(interpret: Interpret, route: str, cell: Cell) -> None:
    (result,) = interpret(measured, cell, [route])
    assert (result.status, result.message) == ("ok", "")
    assert result.us > 0
    assert result.spread >= 0
    assert result.samples >= 3
    assert 0 < result.error < measure_module.TOLERANCE[cell.problem.family.kv_dtype]


@ROUTES
@pytest.mark.parametrize("fault", ["scaled", "NaN", "garbage", "partial", "idle"])
def test_a_wrong_output_is_never_timed_even_after_a_right_one(interpret: Interpret, route: str, fault: str) -> None:
    good, bad, again = interpret(measured, CELL, [route, f"{route}: {fault}", route])
    assert (good.status, again.status) == ("ok", "ok")
    assert (bad.status, bad.us, bad.samples) == ("wrong_result", None, 0)
    assert not bad.error <= measure_module.TOLERANCE["bf16"]


def test_the_error_is_relative(interpret: Interpret) -> None:
    (scaled,) = interpret(measured, CELL, ["paged_2d: scaled"])
    assert scaled.error == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("refused", "compile_error", "this size is not for me"),
        ("silent", "compile_error", "AssertionError"),
        ("pruned", "pruned", "head_size is not mine"),
        ("out of memory", "out_of_resources", "20.00 GiB"),
        ("out of resources", "out_of_resources", "Required: 294912, Hardware limit: 232448"),
    ],
)
def test_a_candidate_that_cannot_run_costs_only_itself(
    interpret: Interpret, fault: str, status: str, words: str
) -> None:
    bad, good = interpret(measured, CELL, [f"paged_2d: {fault}", "paged_2d"], True)
    assert (bad.status, bad.us) == (status, None)
    assert words in bad.message
    assert "\n" not in bad.message
    assert good.status == "ok"


def test_a_lost_device_ends_the_task(interpret: Interpret) -> None:
    """The process cannot go on: the caller must start another one."""
    with pytest.raises(RuntimeError, match="illegal memory access"):
        interpret(measured, CELL, ["paged_2d: illegal access"])


def test_careful_measurements_have_as_many_samples_each(interpret: Interpret) -> None:
    results = interpret(measured, CELL, ["paged_2d", "paged_3d", "paged_2d: scaled"], True)
    assert [item.status for item in results] == ["ok", "ok", "wrong_result"]
    assert results[0].samples == results[1].samples > 5


def measured_by_clock(step: float, careful: bool) -> Measurement:
    """Measure a sound route by a clock that goes on by so many seconds from reading to reading."""
    readings = itertools.count(0.0, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(readings))
        return measured(CELL, ["paged_2d"], careful)[0]


@pytest.mark.parametrize(("step", "careful"), [(0.0, False), (-1.0, False), (math.inf, False), (math.inf, True)])
def test_a_time_that_cannot_be_is_none(interpret: Interpret, step: float, careful: bool) -> None:
    result = interpret(measured_by_clock, step, careful)
    assert (result.status, result.us) == ("invalid_time", None)


def rotation(cell: Cell, sets: int) -> tuple[list[list[int]], bool, int]:
    """The pages of each input set of a cell, whether all sets have a finite result, and how many caches there are."""
    measure_module.MAX_SETS = sets
    prepared = prepare(cell)
    pages = []
    for item in prepared.sets:
        counts = (-(-keys // item.page_size) for keys in item.seqused_k.tolist())
        pages.append(
            [page for row, count in zip(item.block_table, counts, strict=True) for page in row[:count].tolist()]
        )
    finite = all(bool(reference_attention(item).isfinite().all()) for item in prepared.sets)
    return pages, finite, len({item.k.data_ptr() for item in prepared.sets})


@pytest.mark.parametrize("cell", [CELL, MIXED], ids=["uniform", "mixed"])
def test_input_sets_share_a_cache_and_no_page(interpret: Interpret, cell: Cell) -> None:
    pages, finite, caches = interpret(rotation, cell, 4)
    lengths = cell.kv_lens or (cell.problem.max_seqlen_k,) * cell.problem.num_seqs
    in_set = sum(-(-keys // FAMILY.page_size) for keys in lengths)
    assert [len(own) for own in pages] == [in_set] * 4
    assert len({page for own in pages for page in own}) == 4 * in_set
    assert finite
    assert caches == 1


@pytest.mark.parametrize(
    ("problem", "sets"),
    [
        # 4 KV heads * (128 + 128) * 2 bytes are 2 KiB a token: 10 MiB a set, against 50 MiB of L2.
        (AttentionProblem(AttentionFamily(4, 4, 128), 1, 1, 5120), 10),
        (AttentionProblem(AttentionFamily(4, 4, 128), 1, 1, 51200), 1),
        (AttentionProblem(FAMILY, 1, 1, 16), measure_module.MAX_SETS),
    ],
)
def test_there_are_as_many_sets_as_outgrow_the_cache_twice(problem: AttentionProblem, sets: int) -> None:
    assert get_arch("sm_90").cache_bytes == 50 << 20
    assert len(prepare(Cell(problem, "sm_90")).sets) == sets


def test_every_cache_dtype_has_a_tolerance() -> None:
    assert measure_module.TOLERANCE.keys() == TORCH_DTYPES.keys()
    assert all(torch.finfo(torch.bfloat16).eps / 4 < limit < 0.1 for limit in measure_module.TOLERANCE.values())
