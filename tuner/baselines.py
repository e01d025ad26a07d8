"""Rules that other projects ship for choosing a kernel and its parameters, and this project's own fallback rule.

Each rule is restated for the routes ``paged_2d`` and ``paged_3d``. A tuned row has to beat the best of them, and the
fallback answers when no table row does. Every answer passes through :func:`attn_tune.lds.fitted`. That step is this
project's addition: defaults that projects shipped have exceeded the LDS of some arch and failed at launch.

Notation: G is the query heads per KV head, BQ = BLOCK_M // G the query tokens of one program, and a *unit* a compute
unit, work-group processor or SM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .arch import ARCHS, ArchSpec
from .kernels.lds import fitted, min_block_m, min_tile_size
from .kernels.lds import next_power_of_two as pow2
from .problem import AttentionFamily, AttentionProblem

MAX_SEGMENTS = 128

# The stand-in for an unknown arch: 64 KiB of LDS is the least among current GPUs, and NVIDIA's estimate the larger one.
_GENERIC = replace(ARCHS["sm_90"], name="generic", aliases=(), compute_units=128, lds_per_program=65536)


@dataclass(frozen=True)
class Choice:
    """A route and its config, whose keys are BLOCK_M, TILE_SIZE, NUM_SEGMENTS, num_warps, num_stages in this order,
    and waves_per_eu on AMD. NUM_SEGMENTS is 1 for ``paged_2d``."""

    route: str
    config: dict[str, int]


@dataclass(frozen=True)
class Rule:
    """A project's rule. ``choose`` returns None when the rule's gate refuses the problem or the arch."""

    name: str
    source: str
    choose: Callable[[AttentionProblem, ArchSpec], Choice | None]


def rule_choices(problem: AttentionProblem, arch: ArchSpec) -> dict[str, Choice]:
    """The answer of every rule that applies to the problem on the arch, by rule name."""
    answers = {name: rule.choose(problem, arch) for name, rule in RULES.items()}
    return {name: choice for name, choice in answers.items() if choice is not None}


def default_choice(problem: AttentionProblem, arch: ArchSpec | None = None) -> Choice:
    """This project's fallback, for any valid problem on any arch; None stands for an unknown one with 128 units.

    Up to 63 query tokens, BLOCK_M covers one sequence's tokens of a KV head, at most 64 rows, so that each KV tile is
    loaded once for all of them. Keys are split when there are more than 512 and the unsplit programs are fewer than two
    per unit, into segments of at least 256 keys for up to four programs per unit. Tiles, warps and stages follow a
    random search of 171 configs on one H200 and, for warps on AMD, aiter's rule.
    """
    arch = arch or _GENERIC
    family, verify = problem.family, problem.max_seqlen_q < 64
    head_size = pow2(max(family.head_size, family.value_head_size))
    if verify:
        block_m = min(pow2(problem.max_seqlen_q * family.group_size), 64)
    else:
        block_m = 128 if family.group_size > 8 and head_size <= 256 else 64
    block_m = max(block_m, min_block_m(family))

    num_warps = 4
    if arch.backend == "cuda" and block_m * head_size >= 128 * 256:
        num_warps = 8  # the output accumulator then takes 128 registers of each thread
    elif arch.backend == "hip" and block_m <= 32 and head_size <= 256:
        num_warps = 2

    programs = _working_query_blocks(problem, block_m) * family.num_kv_heads
    segments = 1
    if programs < 2 * arch.compute_units and problem.visible_keys > 512:
        most = min(4 * arch.compute_units // programs, problem.visible_keys // 256, MAX_SEGMENTS)
        segments = 1 << (most.bit_length() - 1)
    return _choice(
        problem,
        arch,
        "paged_3d" if segments > 1 else "paged_2d",
        BLOCK_M=block_m,
        TILE_SIZE=32 if verify and head_size > 128 else 64,
        NUM_SEGMENTS=segments,
        num_warps=num_warps,
        num_stages=1 if head_size > 256 else 2,
        waves_per_eu=2,
    )


def _aiter_gfx950(problem: AttentionProblem, arch: ArchSpec) -> Choice:
    family = problem.family
    keys, large_head = problem.max_seqlen_k, family.head_size >= 512
    programs = _programs_2d(problem, min_block_m(family))
    if family.sliding_window or keys <= 512 or programs > 4 * arch.compute_units:
        return _aiter_2d(problem, arch)
    if large_head and problem.max_seqlen_q > 1:
        return _aiter_2d(problem, arch)
    num_warps, waves_per_eu = 4 if large_head else 2, 2
    tile_size = _aiter_tile_size(family)
    most = min(MAX_SEGMENTS, _ceil_div(keys, tile_size))
    wanted = _ceil_div(4 * arch.compute_units * (waves_per_eu * 4 // num_warps), programs)
    return _choice(
        problem,
        arch,
        "paged_3d",
        BLOCK_M=min_block_m(family),
        TILE_SIZE=tile_size,
        NUM_SEGMENTS=pow2(max(min(wanted, most), min(8, most))),
        num_warps=num_warps,
        num_stages=1 if large_head else 2,
        waves_per_eu=waves_per_eu,
    )


def _aiter_2d(problem: AttentionProblem, arch: ArchSpec) -> Choice:
    family = problem.family
    block_m = min_block_m(family)
    if problem.max_seqlen_q == 1:
        tile_size = _aiter_tile_size(family)
        num_warps, num_stages = (4, 1) if family.head_size >= 512 else (2, 2 if family.head_size > 128 else 3)
    elif family.head_size >= 512:
        tile_size, num_warps, num_stages = 16, 4, 2
    elif family.head_size >= 256:
        tile_size, num_warps, num_stages = 32, 2, 2
    elif problem.max_seqlen_q >= 256:
        block_m, tile_size, num_warps, num_stages = max(block_m, 128), 64, 4, 1
    else:
        tile_size, num_warps, num_stages = 64, 2, 1
    return _choice(
        problem,
        arch,
        "paged_2d",
        BLOCK_M=block_m,
        TILE_SIZE=tile_size,
        NUM_SEGMENTS=1,
        num_warps=num_warps,
        num_stages=num_stages,
        waves_per_eu=2,
    )


def _aiter_gfx1250(problem: AttentionProblem, arch: ArchSpec) -> Choice | None:
    family = problem.family
    if arch.backend != "hip" or arch.wave_size != 32:
        return None
    if problem.max_seqlen_q > 1 or family.sliding_window:
        return _aiter_2d(problem, arch)
    num_warps, waves_per_eu = 1, 2
    tile_size = max(pow2(family.page_size), min_tile_size(family))
    wanted = arch.compute_units * (waves_per_eu * 4 // num_warps) // _programs_2d(problem, min_block_m(family))
    return _choice(
        problem,
        arch,
        "paged_3d",
        BLOCK_M=min_block_m(family),
        TILE_SIZE=tile_size,
        NUM_SEGMENTS=min(pow2(max(wanted, 1)), _ceil_div(problem.max_seqlen_k, tile_size), MAX_SEGMENTS),
        num_warps=num_warps,
        num_stages=2,
        waves_per_eu=waves_per_eu,
    )


def _sglang_mtp(problem: AttentionProblem, arch: ArchSpec) -> Choice | None:
    family, keys = problem.family, problem.max_seqlen_k
    heads = (family.group_size, family.head_size, family.value_head_size)
    cache = (family.page_size, family.q_dtype, family.kv_dtype)
    extras = family.sliding_window or family.softcap or family.sinks
    sizes = 1 < problem.max_seqlen_q <= 4 and keys > 512
    if heads != (16, 256, 256) or cache != (16, "bf16", "fp8_e4m3") or extras or not sizes:
        return None
    parallel = _ceil_div(2 * arch.compute_units, _programs_2d(problem, block_m=32))
    work = min(_ceil_div(keys, 1024), 8 * parallel)
    segments = pow2(min(64, _ceil_div(keys, 32), max(8, parallel, work)))
    return _choice(
        problem,
        arch,
        "paged_3d",
        BLOCK_M=32,
        TILE_SIZE=32,
        NUM_SEGMENTS=segments,
        num_warps=2,
        num_stages=2,
        waves_per_eu=2,
    )


def _vllm(problem: AttentionProblem, arch: ArchSpec) -> Choice:
    family = problem.family
    block_m = min_block_m(family)
    query_blocks = problem.num_seqs * _ceil_div(problem.max_seqlen_q, block_m // family.group_size)
    split = problem.max_seqlen_q <= 8 and query_blocks <= 128 // family.num_kv_heads
    return _choice(
        problem,
        arch,
        "paged_3d" if split else "paged_2d",
        BLOCK_M=block_m,
        TILE_SIZE=16 if split and family.q_dtype != "fp8_e4m3" else 32,
        NUM_SEGMENTS=16 if split else 1,
        num_warps=4,  # the rule leaves these three to Triton's defaults
        num_stages=3 if arch.backend == "cuda" else 2,
        waves_per_eu=0,
    )


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("aiter_gfx950", "aiter, Triton unified attention on gfx950, mid 2026", _aiter_gfx950),
        Rule(
            "aiter_gfx1250", "aiter, paged attention on gfx1250, mid 2026; 2D parameters as on gfx950", _aiter_gfx1250
        ),
        # Its gate also asks for gfx95x, which is left out here so that it is a candidate on every arch.
        Rule("sglang_mtp", "SGLang, speculative verify (MTP) on gfx950, mid 2026", _sglang_mtp),
        Rule("vllm", "vLLM 0.33, Triton unified attention", _vllm),
    )
}


def _choice(problem: AttentionProblem, arch: ArchSpec, route: str, **config: int) -> Choice:
    if arch.backend != "hip":
        del config["waves_per_eu"]
    return Choice(route, fitted(config, problem.family, arch))


def _programs_2d(problem: AttentionProblem, block_m: int) -> int:
    """Programs of an unsplit launch, whose grid is sized without looking at the lengths of single sequences."""
    query_blocks = problem.num_seqs
    if problem.max_seqlen_q > 1:
        query_blocks += problem.num_tokens // (block_m // problem.family.group_size)
    return query_blocks * problem.family.num_kv_heads


def _working_query_blocks(problem: AttentionProblem, block_m: int) -> int:
    """An upper bound on the query blocks that hold a token; the others return at once."""
    block_q = block_m // problem.family.group_size
    blocks = problem.num_seqs * _ceil_div(problem.max_seqlen_q, block_q)
    return min(blocks, problem.num_tokens // block_q + problem.num_seqs)


def _aiter_tile_size(family: AttentionFamily) -> int:
    return max(min(64, pow2(family.page_size)), min_tile_size(family))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
