"""How long ``get_config`` takes: warm, with sizes that vary, with a thousand families, and the first call of a process.

    python benchmarks/lookup.py [--families 70] [--json]

Ratios are to a function of the same signature that answers from one dictionary. The tables are synthetic, with as many
rows per family as a sweep writes, and go to a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attn_tune import get_config
from attn_tune.arch import get_arch
from attn_tune.models import all_families
from attn_tune.problem import AttentionFamily
from attn_tune.runtime.lookup import reload_tables
from attn_tune.search.grid import MAX_SEQLEN_K, MAX_SEQLEN_Q, NUM_SEQS
from attn_tune.store.boxes import intervals
from attn_tune.store.table import Box, ConfigRow, FamilyTable, RoutingRow, Table, write_table

ARCH = "gfx950"
CALL = {"num_seqs": 20, "max_seqlen_q": 4, "max_seqlen_k": 70000}
REPEATS = 21
FIRST_CALLS = 10


def family_table(family: AttentionFamily) -> FamilyTable:
    """63 routing rows and 70 config rows: 3D for each max_seqlen_q and num_seqs, and 2D for each max_seqlen_q."""
    planes = [(q, seqs) for q in intervals(MAX_SEQLEN_Q, 0) for seqs in intervals(NUM_SEQS, 0.25)]
    config = {"BLOCK_M": 64, "TILE_SIZE": 32, "num_warps": 4, "num_stages": 2, "waves_per_eu": 0}
    routing = tuple(RoutingRow(q, seqs, {1: "paged_2d", 513 + q[0]: "paged_3d"}) for q, seqs in planes)

    def row(q: tuple[int, float], seqs: tuple[int, float], keys: tuple[int, float], num_segments: int) -> ConfigRow:
        own = config | {"NUM_SEGMENTS": num_segments, "BLOCK_M": max(64, 1 << (family.group_size - 1).bit_length())}
        return ConfigRow(Box(q, seqs, keys), own, "modelled", (10.0, 1000.0), 1.0, 1.1)

    short = tuple(row(q, (1, math.inf), (1, 512 + q[0]), 1) for q in intervals(MAX_SEQLEN_Q, 0))
    long = tuple(row(q, seqs, (513 + q[0], math.inf), 2 + seqs[0] % 64) for q, seqs in planes)
    return FamilyTable(family, routing, {"paged_2d": short, "paged_3d": long})


def write_families(directory: Path, count: int) -> list[AttentionFamily]:
    """A table of ``count`` families: the models', then the same with other page sizes."""
    families = all_families()
    more = [replace(family, page_size=256 + number) for number in range(count) for family in families]
    families = list(dict.fromkeys(families + more))[:count]
    spec = get_arch(ARCH)
    built_with = {"attn_tune": version("attn-tune"), "triton": "0.0.0", "kernels": "synthetic"}
    tables = tuple(map(family_table, families))
    write_table(directory / f"{ARCH}.yaml", Table(spec.name, spec.compute_units, spec.wave_size, built_with, tables))
    return families


def nanoseconds(call: Callable[[], Any], number: int = 2000) -> float:
    """Median over repeats of the mean time of one call."""
    return statistics.median(timeit.repeat(call, number=number, repeat=REPEATS)) / number * 1e9


def p99(call: Callable[[], Any], samples: int = 100_000) -> float:
    """The 99th percentile of single calls in nanoseconds, the clock's own time included."""
    times = []
    for _ in range(samples):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[samples * 99 // 100]


def varying(calls: list[dict[str, Any]]) -> Callable[[], Any]:
    """A function that makes the next of some calls each time."""
    state = iter(())

    def call() -> Any:
        nonlocal state
        arguments = next(state, None)
        if arguments is None:
            state = iter(calls)
            arguments = next(state)
        return get_config(**arguments)

    return call


def first_call(directory: Path, family: AttentionFamily) -> float:
    """Milliseconds of ``import attn_tune`` and one lookup in a fresh process, median over ten."""
    code = (
        "import time; start = time.perf_counter(); import attn_tune;"
        f"answer = attn_tune.get_config(arch={ARCH!r}, **{vars(family)!r}, **{CALL!r});"
        "print(time.perf_counter() - start); assert answer.source == 'exact'"
    )
    environment = os.environ | {"ATTN_TUNE_CONFIG_DIR": str(directory)}
    command = [sys.executable, "-c", code]
    times = [
        float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
        for _ in range(FIRST_CALLS)
    ]
    return statistics.median(times) * 1e3


def dictionary(family: AttentionFamily) -> Callable[[], Any]:
    """A call with get_config's arguments to a function that has all its answers in one dictionary."""
    arguments = {"arch": ARCH, **vars(family), **CALL}
    names = ", ".join(arguments)
    scope: dict[str, Any] = {"answers": {tuple(arguments.values()): get_config(**arguments)}}
    exec(f"def look_up(*, {names}):\n    return answers[{names}]", scope)
    look_up = scope["look_up"]
    return lambda: look_up(**arguments)


def measure(count: int) -> dict[str, float]:
    """All times in the units their names say."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        os.environ["ATTN_TUNE_CONFIG_DIR"] = name
        family = write_families(Path(name), count)[0]
        reload_tables()
        arguments = {"arch": ARCH, **vars(family), **CALL}
        plain = nanoseconds(dictionary(family))
        warm = nanoseconds(lambda: get_config(**arguments))
        sizes = [
            arguments
            | {
                "num_seqs": rng.choice(NUM_SEQS) + rng.randint(0, 9),
                "max_seqlen_q": rng.choice(MAX_SEQLEN_Q[:4]),
                "max_seqlen_k": rng.randint(MAX_SEQLEN_K[0], MAX_SEQLEN_K[-1]),
            }
            for _ in range(5000)
        ]
        result = {
            "dictionary_ns": plain,
            "warm_ns": warm,
            "warm_over_dictionary": warm / plain,
            "varying_sizes_ns": nanoseconds(varying(sizes), 5000),
            "p99_ns": p99(lambda: get_config(**arguments)),
            f"first_call_{count}_families_ms": first_call(Path(name), family),
        }
        many = [{"arch": ARCH, **vars(each), **CALL} for each in write_families(Path(name), 1000)]
        reload_tables()
        for each in many:
            get_config(**each)
        return result | {
            "1000_families_ns": nanoseconds(varying(many), 1000),
            "first_call_1000_families_ms": first_call(Path(name), family),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=int, default=70, help="families in the table")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    arguments = parser.parse_args()
    result = measure(arguments.families)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' '):32} {value:10.2f}")


if __name__ == "__main__":
    main()
