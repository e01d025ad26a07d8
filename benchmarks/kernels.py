"""The kernels on this machine's GPU, one run: time, bandwidth against a device copy, and every baseline rule.

    python benchmarks/kernels.py

Each cell runs a few configurations that a search found on an H200, and the rules' own over the same kernels, all in
interleaved rounds of graph replay, the reduce included. Prints the fastest of the former.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_tune.arch import get_arch
from attn_tune.device import local_device
from attn_tune.evaluate.compile_many import CompileRequest, compile_configs
from attn_tune.evaluate.measure import Cell, MeasureTask, measure
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.predictions import compilation
from attn_tune.search.staged import Key, rule_keys

Config = tuple[str, tuple[int, ...]]
"""Route, then BLOCK_M, TILE_SIZE, NUM_SEGMENTS, num_warps, num_stages, KEYS_FIRST, QUERY_TERMS."""


@dataclass(frozen=True)
class KernelCell:
    """A cell, the time to beat in microseconds, and the configurations to try."""

    problem: AttentionProblem
    target_us: float
    configs: tuple[Config, ...]


def split(*values: int) -> Config:
    return "paged_3d", values


def whole(*values: int) -> Config:
    return "paged_2d", values


CELLS = (
    KernelCell(
        AttentionProblem(AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3"), 20, 4, 70000),
        300,
        (split(64, 64, 13, 4, 2, 1, 2), split(64, 64, 13, 4, 4, 1, 2)),
    ),
    KernelCell(
        AttentionProblem(
            AttentionFamily(16, 1, 128, page_size=128, kv_dtype="fp8_e4m3", kv_scales="per_token_head"), 3, 4, 227000
        ),
        100,
        (split(64, 128, 88, 4, 2, 0, 2), split(64, 128, 88, 4, 2, 1, 2)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(16, 1, 128), 3, 4, 227000),
        120,
        (split(64, 32, 88, 4, 5, 1, 0), split(64, 64, 88, 4, 4, 1, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(8, 1, 128), 32, 1, 16384),
        74,
        (split(16, 32, 12, 4, 5, 1, 0), split(16, 64, 8, 2, 5, 1, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(8, 1, 128), 1, 1, 32768),
        10,
        (split(16, 256, 128, 8, 1, 0, 0), split(16, 128, 256, 4, 1, 1, 0), split(16, 64, 256, 4, 2, 1, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(32, 8, 128, kv_dtype="fp8_e4m3"), 64, 1, 8192),
        330,
        (split(16, 32, 2, 1, 5, 0, 0), split(16, 32, 4, 1, 5, 1, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(32, 8, 128), 256, 1, 1024),
        250,
        (whole(16, 64, 1, 4, 4, 1, 0), whole(16, 64, 1, 4, 3, 1, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(64, 8, 64), 32, 1, 8192),
        145,
        (split(16, 128, 2, 4, 2, 1, 0), split(16, 64, 4, 1, 3, 0, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(32, 4, 512, page_size=32, kv_dtype="fp8_e4m3"), 1, 1, 8192),
        30,
        (split(16, 32, 66, 4, 2, 1, 0), split(16, 32, 64, 4, 3, 1, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(64, 4, 128), 8, 4, 32768),
        200,
        (split(64, 64, 8, 4, 2, 1, 0), split(64, 64, 8, 4, 3, 0, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(32, 8, 128), 1, 4096, 4096),
        400,
        (whole(128, 128, 1, 8, 3, 1, 0), whole(64, 64, 1, 4, 2, 0, 0)),
    ),
    KernelCell(
        AttentionProblem(AttentionFamily(16, 1, 256), 4, 2048, 2048),
        380,
        (whole(128, 64, 1, 8, 2, 0, 0), whole(128, 64, 1, 8, 3, 1, 0)),
    ),
)


def keys_of(cell: KernelCell) -> list[Key]:
    """The cell's configurations as kernel and complete config."""
    names = ("BLOCK_M", "TILE_SIZE", "NUM_SEGMENTS", "num_warps", "num_stages", "KEYS_FIRST", "QUERY_TERMS")
    keys: list[Key] = []
    for route, values in cell.configs:
        config = {name: value for name, value in zip(names, values, strict=True) if value or name == "KEYS_FIRST"}
        if route == "paged_3d":
            config["OVERLAP_REDUCE"] = 1
        keys.append((route, tuple(config.items())))
    return keys


def copy_bandwidth() -> float:
    """Bytes per second of a device copy of 4 GiB, read plus written. Not in a graph, where it is slower."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * source.numel() * source.element_size() / (sorted(times)[len(times) // 2] * 1e-3)


def flops(problem: AttentionProblem) -> float:
    """Floating-point operations of causal attention: two products, two operations each, over the visible keys."""
    family, queries, keys = problem.family, problem.max_seqlen_q, problem.max_seqlen_k
    visible = queries * (2 * keys - queries + 1) / 2
    return 2.0 * problem.num_seqs * family.num_query_heads * visible * (family.head_size + family.value_head_size)


def main() -> None:
    device = local_device()
    if device is None:
        raise SystemExit("no GPU was found")
    arch = get_arch(device.arch)
    plans = [(cell, keys_of(cell), rule_keys(cell.problem, arch)) for cell in CELLS]
    requests = {
        CompileRequest(key[0], cell.problem.family, compilation(key[0], dict(key[1]))[1])
        for cell, keys, rules in plans
        for key in (*keys, *rules.values())
    }
    for _ in compile_configs(sorted(requests, key=str), arch=arch, time_limit=120.0):
        pass
    bandwidth = copy_bandwidth()
    print(f"{device.name}, {torch.version.cuda or torch.version.hip}; device copy {bandwidth / 1e12:.2f} TB/s")
    names = sorted({name for _, _, rules in plans for name in rules})
    print(
        f"{'cell':73} {'us':>7} {'target':>6} {'TB/s':>5} {'copy':>5} {'TFLOP/s':>7}  rule / ours: {', '.join(names)}"
    )
    for cell, keys, rules in plans:
        results = measure(MeasureTask(Cell(cell.problem, arch.name), (*keys, *rules.values()), careful=True))
        ours = [item.us for item in results[: len(keys)] if item.us is not None]
        best = min(ours, default=float("nan"))
        times = dict(zip(rules, (item.us for item in results[len(keys) :]), strict=True))
        ratios = [f"{times[name] / best:.2f}" if times.get(name) else "-" for name in names]
        read = cell.problem.num_seqs * cell.problem.max_seqlen_k * cell.problem.family.bytes_per_token
        speed = read / best * 1e6
        prefill = cell.problem.max_seqlen_q >= 64
        print(
            f"{cell.problem!s:73} {best:7.1f} {cell.target_us:6.0f} "
            + (f"{'':11}" if prefill else f"{speed / 1e12:5.2f} {speed / bandwidth:5.0%}")
            + (f" {flops(cell.problem) / best / 1e6:7.0f}  " if prefill else f" {'':7}  ")
            + "  ".join(ratios)
        )


if __name__ == "__main__":
    main()
