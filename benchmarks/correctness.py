"""Both routes on this machine's GPU against the fp32 reference.

    python benchmarks/correctness.py                   short and long cases, and the properties
    python benchmarks/correctness.py --large           caches over 2 GiB and over 2**31 elements
    python benchmarks/correctness.py --memcheck-grid   the short cases with one configuration each; then again as
    compute-sanitizer --kernel-regex kns=paged_attention python benchmarks/correctness.py --memcheck-grid --jobs 0

Prints the worst errors by dtype and the failures by name; exits 1 if anything fails. Kernels are compiled in a pool of
processes first, and then taken from Triton's cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

if "--memcheck-grid" in sys.argv:  # one allocation for each tensor, so that the sanitizer sees its end
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

from attn_tune.arch import ArchSpec, get_arch
from attn_tune.kernels import get_kernel
from attn_tune.kernels.launch import kernel_function, run
from attn_tune.kernels.lds import fitted
from attn_tune.kernels.reference import reference_attention
from attn_tune.testing import (
    CASES,
    LARGE_CASES,
    LONG_CASES,
    PROPERTIES,
    SPLIT_PROPERTIES,
    Case,
    Outcome,
    compare,
    poison,
)

ROUTES = ("paged_2d", "paged_3d")
SEGMENTS = (3, 16)
CONFIGS = (
    {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 64, "TILE_SIZE": 64, "NUM_SEGMENTS": 3, "num_warps": 4, "num_stages": 3},
)


@dataclass(frozen=True)
class Trial:
    """One case by one route and configuration."""

    case: Case
    route: str
    config: dict[str, int]

    def __str__(self) -> str:
        return f"{self.route}, {self.case.name}, {self.config}"


@dataclass
class Tally:
    """What the table shows for one combination of dtypes."""

    cases: set[str] = field(default_factory=set)
    runs: int = 0
    error: float = 0.0
    bias: float = 0.0
    worst: float = 0.0

    def add(self, case: Case, outcome: Outcome) -> None:
        self.cases.add(case.name)
        self.runs += 1
        self.error = max(self.error, outcome.error)
        self.bias = max(self.bias, outcome.bias, key=abs)
        self.worst = max(self.worst, outcome.worst)


def local_arch() -> ArchSpec:
    """The arch of the current device. Raises ValueError if no record knows it."""
    if torch.version.hip:
        return get_arch(torch.cuda.get_device_properties(0).gcnArchName)
    major, minor = torch.cuda.get_device_capability()
    return get_arch(f"sm_{major}{minor}")


def trials_of(case: Case, configs: Iterable[dict[str, int]], arch: ArchSpec) -> Iterator[Trial]:
    """The case by both routes, with configurations made to fit the arch; a split route tries several segments."""
    for route in ROUTES:
        seen = []
        for base in configs:
            for segments in SEGMENTS if route == "paged_3d" else (1,):
                config = case.complete(base | {"NUM_SEGMENTS": segments})
                largest = max(case.family.head_size, case.family.value_head_size)
                if config["BLOCK_M"] * largest > 64 * 256:  # over 128 accumulators a thread
                    config["num_warps"] = 8
                config = get_kernel(route).complete(fitted(config, case.family, arch), arch)
                if config not in seen:
                    seen.append(config)
                    yield Trial(case, route, config)


def compile_trial(trial: Trial) -> None:
    """Compile a trial's kernels into Triton's cache; an error will show again where the trial runs."""
    try:
        for launch in get_kernel(trial.route).plan(trial.case.inputs("meta"), trial.config):
            kernel = kernel_function(launch.kernel)
            kernel.warmup(grid=launch.grid, **launch.arguments, **launch.constants, **launch.options)
    except Exception as error:
        print(f"{trial}: {type(error).__name__}", file=sys.stderr)


def compile_all(trials: list[Trial], jobs: int) -> None:
    """Compile each kernel once, the slowest ones first; the number of segments is a run-time argument."""
    distinct = {}
    for trial in trials:
        config = {name: value for name, value in trial.config.items() if name != "NUM_SEGMENTS"}
        distinct[trial.case.family, trial.case.variations, trial.route, tuple(config.items())] = trial
    slowest_first = sorted(distinct.values(), key=lambda trial: -trial.case.family.head_size)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        pool.map(compile_trial, slowest_first, chunksize=1)


def check_properties(arch: ArchSpec) -> list[str]:
    """The properties of each route; returns the failures."""
    failures = []
    for route in ROUTES:
        for check in PROPERTIES + (SPLIT_PROPERTIES if route == "paged_3d" else ()):
            for config in CONFIGS:
                fault = check(route, get_kernel(route).complete(config, arch), "cuda")
                if fault:
                    failures.append(f"{route}, {check.__name__}, {config}: {fault}")
    return failures


def check_cases(trials: list[Trial]) -> tuple[dict[str, Tally], list[str]]:
    """Run the trials, which are grouped by case; returns the table and the failures."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    failures = []
    case = None
    for trial in trials:
        if trial.case is not case:
            case = trial.case
            inputs = case.inputs("cuda")
            expected = reference_attention(inputs)
        try:
            poison(inputs)
            run(trial.route, inputs, trial.config)
            outcome = compare(inputs, expected)
        except Exception as error:
            failures.append(f"{trial}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                failures.append("the device no longer answers: stopped")
                break
            continue
        family = case.family
        kinds = (family.q_dtype, family.kv_dtype, family.kv_scales, str(inputs.out.dtype).removeprefix("torch."))
        tallies["{:9} {:9} {:14} {:14}".format(*kinds)].add(case, outcome)
        if outcome.fault:
            failures.append(f"{trial}: {outcome.fault}")
    return tallies, failures


def past_the_limit(case: Case) -> str | None:
    """None if the batch reads K and V past 2**31 elements or, of a cache with fewer, past 2 GiB."""
    inputs = case.inputs("cuda")
    last_page = int(inputs.block_table[inputs.block_table < inputs.k.shape[0]].max())
    for cache in (inputs.k, inputs.v):
        reach = last_page * cache.stride(0) * (1 if cache.numel() > 2**31 else cache.element_size())
        if reach <= 2**31:
            return f"{case.name}: the last page that the batch reads is at {reach}, not past 2**31"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Check both routes on this machine's GPU against the reference.")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--large", action="store_true", help="caches over 2 GiB and over 2**31 elements")
    modes.add_argument("--memcheck-grid", action="store_true", help="short cases, for compute-sanitizer")
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count() or 1, 16), help="processes that compile; 0: each run compiles"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    started = time.monotonic()
    arch = local_arch()
    cases = LARGE_CASES if options.large else CASES if options.memcheck_grid else CASES + LONG_CASES
    configs = CONFIGS[:1] if options.memcheck_grid else CONFIGS
    trials = [trial for case in cases for trial in trials_of(case, configs, arch)]
    if options.jobs:
        compile_all(trials, options.jobs)
    print(f"compiled for {len(trials)} runs in {time.monotonic() - started:.0f} s", flush=True)
    tallies, failures = check_cases(trials)
    if options.large:
        failures += filter(None, map(past_the_limit, cases))
    else:
        failures += check_properties(arch)

    print(f"{'q':9} {'kv':9} {'scales':14} {'out':14} {'cases':>5} {'runs':>5} {'error':>8} {'bias':>9} {'worst':>6}")
    for kinds, tally in sorted(tallies.items()):
        print(f"{kinds} {len(tally.cases):5} {tally.runs:5} {tally.error:8.1e} {tally.bias:+9.1e} {tally.worst:6.2f}")
    print("error: relative L2; bias: relative mean; worst: of an element, as a share of the tolerance")
    for failure in failures:
        print("FAILED", failure)
    runs = sum(tally.runs for tally in tallies.values())
    print(
        f"{arch.name}: {runs} runs of {len(cases)} cases, {len(failures)} failures, {time.monotonic() - started:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
