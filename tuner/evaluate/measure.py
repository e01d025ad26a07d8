"""Check and time configurations on the GPU. Runs inside a killable worker, never in the process that sweeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from ..arch import ArchSpec, get_arch
from ..kernels import Config, Launch, get_kernel
from ..kernels.inputs import AttentionInputs, Workspace, allocate_workspace
from ..kernels.launch import run_launch
from ..kernels.random_inputs import random_inputs
from ..kernels.reference import reference_attention, relative_error
from ..kernels.routes import padded_head_size
from ..problem import AttentionProblem
from .conditions import describe, gpu_conditions
from .timing import Replay, race, screen

TOLERANCE = {"bf16": 1e-2, "fp16": 1e-2, "fp8_e4m3": 2e-2, "int8": 2e-2}
"""Largest relative L2 error by the cache's dtype, against the fp32 reference on the dequantised cache."""

MAX_SETS = 32
_CHECKED_BYTES = 4e9  # of keys and values that the reference looks at; sequences past that are checked for NaN only


@dataclass(frozen=True)
class Cell:
    """A problem to measure; lengths left out mean that every sequence has the maximum."""

    problem: AttentionProblem
    arch: str
    query_lens: tuple[int, ...] | None = None
    kv_lens: tuple[int, ...] | None = None


@dataclass(frozen=True)
class MeasureTask:
    """Configurations to try on one cell; ``careful`` times them against each other, in interleaved rounds."""

    cell: Cell
    configs: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    careful: bool = False


@dataclass(frozen=True)
class Measurement:
    """What became of one configuration: a status of :class:`~attn_tune.store.trial.Trial`, and its numbers."""

    status: str
    us: float | None = None
    spread: float | None = None
    samples: int = 0
    error: float | None = None
    message: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """Inputs of a cell on the device: as many sets as it takes to outgrow the cache, sharing one pool of pages."""

    cell: Cell
    sets: tuple[AttentionInputs, ...]
    expected: torch.Tensor


_prepared: Prepared | None = None


def measure(task: MeasureTask) -> list[Measurement]:
    """Check and time the task's configurations in turn. The cell's inputs stay for the next task on the same cell."""
    global _prepared
    if _prepared is None or _prepared.cell != task.cell:
        _prepared = None  # free the memory before taking more
        _prepared = prepare(task.cell)
    replays: list[tuple[Replay, float] | Measurement] = []
    for kernel, items in task.configs:
        replays.append(_checked(_prepared, kernel, dict(items)))
    ready = [item for item in replays if not isinstance(item, Measurement)]
    before = gpu_conditions() if task.careful else {}
    samples = race([replay for replay, _ in ready]) if task.careful else [screen(replay) for replay, _ in ready]
    conditions = describe(before, gpu_conditions()) if task.careful else {}
    results = iter(zip(ready, samples, strict=True))
    measurements = []
    for item in replays:
        if not isinstance(item, Measurement):
            (_, error), sample = next(results)
            possible = math.isfinite(sample.us) and sample.us > 0
            status = "ok" if possible else "invalid_time"
            us = sample.us if possible else None
            item = Measurement(status, us, sample.spread, sample.samples, error, conditions=conditions)
        measurements.append(item)
    return measurements


def prepare(cell: Cell) -> Prepared:
    """Random inputs of a cell on the GPU (without one on the CPU), and the reference for the first set."""
    problem = cell.problem
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = cell.kv_lens or (problem.max_seqlen_k,) * problem.num_seqs
    pages = sum(-(-length // problem.family.page_size) for length in lengths)
    bytes_in_set = pages * problem.family.page_size * problem.family.bytes_per_token
    count = min(max(math.ceil(2 * get_arch(cell.arch).cache_bytes / bytes_in_set), 1), MAX_SETS)
    first = random_inputs(
        problem, device, query_lens=cell.query_lens, kv_lens=cell.kv_lens, num_pages=pages * count, poison=False
    )
    # Every set takes the pages that the first does not use, in an order of its own.
    used = [first.block_table[seq, : -(-length // problem.family.page_size)] for seq, length in enumerate(lengths)]
    free = torch.ones(pages * count, dtype=torch.bool, device=device)
    free[torch.cat(used).long()] = False
    order = free.nonzero().flatten()[torch.randperm(pages * (count - 1), device=device)].int()
    sets = [first]
    for number in range(count - 1):
        table = first.block_table.clone()
        begin = number * pages
        for seq, part in enumerate(used):
            table[seq, : part.numel()] = order[begin : begin + part.numel()]
            begin += part.numel()
        sets.append(dataclasses.replace(first, block_table=table))
    return Prepared(cell, tuple(sets), _expected(first, lengths))


def _expected(inputs: AttentionInputs, lengths: Sequence[int]) -> torch.Tensor:
    """The reference; sequences beyond a limit of bytes are left NaN, which the check skips."""
    limit = _CHECKED_BYTES
    checked: list[int] = []
    for seq in sorted(range(len(lengths)), key=lambda seq: (seq % 7, seq)):
        limit -= lengths[seq] * inputs.family.bytes_per_token
        if limit > 0 or not checked:
            checked.append(seq)
    return reference_attention(inputs, sequences=checked)


def _checked(prepared: Prepared, kernel: str, config: Config) -> tuple[Replay, float] | Measurement:
    """A candidate's replay and error, once its output is right."""
    first = prepared.sets[0]
    arch: ArchSpec = get_arch(prepared.cell.arch)
    reason = get_kernel(kernel).supports(first.family, arch)
    if reason is not None:
        return Measurement("pruned", message=reason)
    try:
        workspace = _workspace(first, config)
        plans = [get_kernel(kernel).plan(inputs, config, workspace) for inputs in prepared.sets]
        # What the candidate before it left must not pass for this one's.
        for tensor in (first.out, workspace.partial, workspace.partial_max, workspace.partial_sum):
            tensor.fill_(float("nan"))
        _call(plans[0])
        error = relative_error(first.out, prepared.expected, unchecked_rows=True)
    except Exception as exception:
        if _is_sticky(exception) or isinstance(exception, OSError):
            raise  # the device context is lost, or the disk is full: this worker cannot go on
        return Measurement(_status(exception), message=_reason(exception))
    if not error <= TOLERANCE[first.family.kv_dtype]:
        return Measurement("wrong_result", error=error, message=f"relative error {error:.2e}")
    calls: list[Callable[[], None]] = [partial(_call, plan) for plan in plans]
    return Replay(calls), error


def _workspace(inputs: AttentionInputs, config: Config) -> Workspace:
    """Room for the partials of one candidate, shared by its input sets, whose calls follow each other."""
    value = padded_head_size(inputs.value_head_size)
    return allocate_workspace(inputs.q.shape[0], inputs.q.shape[1], config["NUM_SEGMENTS"], value, inputs.q.device)


def _call(plan: Sequence[Launch]) -> None:
    for launch in plan:
        run_launch(launch)


def _status(exception: Exception) -> str:
    """Triton names the resource that a kernel exceeds, torch the memory that is not there."""
    short = any(sign in str(exception).lower() for sign in ("out of resource", "out of memory"))
    return "out_of_resources" if short else "compile_error"


def _reason(exception: Exception) -> str:
    """The line that says why: Triton's reports begin with the place (``at 3:4:``) and the source."""
    lines = str(exception).strip().splitlines() or [""]
    return f"{type(exception).__name__}: {lines[-1 if lines[0].startswith('at ') else 0].strip()[:200]}"


def _is_sticky(exception: Exception) -> bool:
    text = str(exception).lower()
    return any(sign in text for sign in ("illegal memory access", "launch failure", "misaligned", "device-side assert"))
