"""Compile many configurations: cached results first, the rest in killable workers on all cores."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from ..arch import ArchSpec
from ..kernels import get_kernel
from ..problem import AttentionFamily, AttentionProblem
from .cache import CompileCache, CompileRecord, cache_key
from .compile import compile_resources, load_compiler
from .resources import Resources
from .specialize import Specialization, specialize
from .workers import Outcome, TaskRunner, run_tasks

_TENSOR_MEMORY_COLUMNS = 512  # of sm_100 (PTX ISA, tcgen05.alloc)

_STATUS = {"ok": "ok", "error": "compile_error", "timeout": "timeout", "crash": "crash"}


@dataclass(frozen=True)
class CompileRequest:
    """A configuration to compile: the route's name, the family, and the config's items."""

    kernel: str
    family: AttentionFamily
    config: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class CompileOutcome:
    """What compiling a configuration came to.

    ``status`` is ``ok``, ``compile_error``, ``out_of_resources`` (compiled, but no launch can be given so much),
    ``timeout`` or ``crash``. ``resources`` has an entry per launch of the plan, the attention kernel first; it is empty
    unless all of them compiled. ``seconds`` is compile time, that of the first run when ``cached``.
    """

    status: str
    resources: tuple[Resources, ...]
    message: str
    seconds: float
    cached: bool


def specializations(request: CompileRequest, arch: ArchSpec) -> list[Specialization]:
    """The compilations of a request, one per launch, at sizes that stand for all.

    Kernels take sizes at run time; none here is 1, which the JIT would turn into a constant where a kernel lets it.

    Raises:
        ValueError: the kernel is unknown or the config does not fit it. A route's ``plan`` may raise other errors.
    """
    from ..kernels.inputs import meta_inputs

    problem = AttentionProblem(request.family, num_seqs=16, max_seqlen_q=4, max_seqlen_k=8192)
    config = {"NUM_SEGMENTS": 32, **dict(request.config)}  # routes that do not split ignore it
    plan = get_kernel(request.kernel).plan(meta_inputs(problem), config)
    return [specialize(launch, arch) for launch in plan]


def compile_configs(
    requests: Iterable[CompileRequest],
    *,
    arch: ArchSpec,
    time_limit: float,
    jobs: int | None = None,
    cache: CompileCache | None = None,
    runner: TaskRunner = run_tasks,
) -> Generator[tuple[CompileRequest, CompileOutcome], None, None]:
    """Compile every request for ``arch`` and yield each with its outcome: cached ones first, the rest as they complete.

    A launch that several requests share is compiled once. ``time_limit`` is in seconds per launch. ``jobs`` is the
    number of worker processes, by default one per core that this process may use; ``runner`` runs them. Without
    ``cache`` the user's cache folder is used. Closing the generator kills the workers; what was complete is cached.

    Raises:
        ValueError: a request names an unknown kernel, or jobs or time_limit is not positive.
    """
    cache = cache or CompileCache()
    jobs = jobs if jobs is not None else len(os.sched_getaffinity(0))
    known: dict[str, CompileRecord] = {}
    missing: dict[str, Specialization] = {}
    waiting: list[tuple[CompileRequest, list[str]]] = []
    for request in requests:
        get_kernel(request.kernel)
        try:
            launches = {cache_key(launch): launch for launch in specializations(request, arch)}
        except Exception as error:  # the plan is the kernel author's code
            yield request, CompileOutcome("compile_error", (), f"{type(error).__name__}: {error}", 0.0, False)
            continue
        for key in launches.keys() - known.keys() - missing.keys():
            record = cache.get(key, time_limit)
            if record is None:
                missing[key] = launches[key]
            else:
                known[key] = record
        if launches.keys() <= known.keys():
            yield request, _outcome([known[key] for key in launches], arch, cached=True)
        else:
            waiting.append((request, list(launches)))

    tasks = runner(compile_resources, missing.values(), workers=jobs, time_limit=time_limit, initializer=load_compiler)
    for launch, outcome in tasks:
        key = cache_key(launch)
        known[key] = _record(outcome, time_limit)
        cache.put(key, known[key])
        complete = [entry for entry in waiting if known.keys() >= set(entry[1])]
        waiting = [entry for entry in waiting if not known.keys() >= set(entry[1])]
        for request, keys in complete:
            yield request, _outcome([known[key] for key in keys], arch, cached=False)


def _record(outcome: Outcome[Resources], time_limit: float) -> CompileRecord:
    return CompileRecord(_STATUS[outcome.status], outcome.message, outcome.seconds, time_limit, outcome.value)


def _outcome(records: list[CompileRecord], arch: ArchSpec, cached: bool) -> CompileOutcome:
    seconds = sum(record.seconds for record in records)
    resources = [record.resources for record in records if record.resources is not None]
    for record in records:
        if record.status != "ok":
            return CompileOutcome(record.status, (), record.message, seconds, cached)
    excess = next((text for item in resources if (text := exceeded_limit(item, arch)) is not None), None)
    status = "ok" if excess is None else "out_of_resources"
    return CompileOutcome(status, tuple(resources), excess or "", seconds, cached)


def exceeded_limit(resources: Resources, arch: ArchSpec) -> str | None:
    """None if a launch can be given these resources, else which one is short, with the required amount and the limit.

    Triton compiles what no launch can run: it checks these when it loads a kernel.
    """
    if resources.lds_bytes > arch.lds_per_program:
        return f"LDS: required {resources.lds_bytes} bytes, limit {arch.lds_per_program}"
    if resources.tensor_memory_columns > _TENSOR_MEMORY_COLUMNS:
        return f"tensor memory: required {resources.tensor_memory_columns} columns, limit {_TENSOR_MEMORY_COLUMNS}"
    return None
