"""The two routes: what they support, which configurations they offer, how much work those are, and their launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..arch import ArchSpec
from ..problem import DTYPE_BYTES, AttentionFamily, AttentionProblem
from .lds import fits_lds, min_block_m, min_tile_size, next_power_of_two
from .protocol import COMPILE_OPTIONS, Config, Launch, Work

if TYPE_CHECKING:
    from .inputs import AttentionInputs, Workspace

MAX_SEGMENTS = 256
MAX_PARTIAL_BYTES = 1 << 30


def padded_head_size(head_size: int) -> int:
    """The head size that a kernel computes on: matrix instructions want a power of two, at least 16."""
    return max(next_power_of_two(head_size), 16)


def query_blocks(problem: AttentionProblem, block_m: int) -> tuple[int, int]:
    """(blocks of the grid, blocks per sequence or 0 when they are packed; see ``locate_query_block``)."""
    block_q = block_m // problem.family.group_size
    blocks_per_seq = -(-problem.max_seqlen_q // block_q)
    uniform = problem.num_seqs * blocks_per_seq
    packed = problem.num_tokens // block_q + problem.num_seqs
    return (uniform, blocks_per_seq) if uniform <= packed else (packed, 0)


@dataclass(frozen=True)
class PagedAttention:
    """Paged attention in Triton; with ``split`` the keys are divided into segments that a second kernel combines."""

    name: str
    split: bool

    def supports(self, family: AttentionFamily, arch: ArchSpec | None) -> str | None:
        """None if the route computes this family, else the reason, naming the argument."""
        kv_8bit = DTYPE_BYTES[family.kv_dtype] == 1
        if family.q_dtype == "fp8_e4m3" and family.kv_dtype != "fp8_e4m3":
            return f"{self.name}: q of dtype fp8_e4m3 needs kv_dtype fp8_e4m3, not {family.kv_dtype}"
        if not kv_8bit and family.q_dtype != family.kv_dtype:
            return f"{self.name}: q_dtype {family.q_dtype} and kv_dtype {family.kv_dtype} must be equal"
        if not kv_8bit and family.kv_scales != "none":
            return f"{self.name}: kv_scales {family.kv_scales} needs an 8-bit kv_dtype, not {family.kv_dtype}"
        if family.sliding_window and not family.causal:
            return f"{self.name}: sliding_window needs causal attention"
        if family.group_size > 128:
            return f"{self.name}: more than 128 query heads per KV head (num_query_heads / num_kv_heads)"
        if family.kv_layout == "shuffled":
            x = 16 // DTYPE_BYTES[family.kv_dtype]
            for field, value in (("head_size", family.head_size), ("page_size", family.page_size)):
                if value % x:
                    return f"{self.name}: {field} must be a multiple of {x} for kv_layout shuffled"
        if max(family.head_size, family.value_head_size) > 512:
            return f"{self.name}: head_size over 512"
        if family.kv_dtype == "fp8_e4m3" and arch is not None and arch.name == "sm_80":
            return f"{self.name}: kv_dtype fp8_e4m3 needs sm_89 or newer"
        return None

    def complete(self, config: Config, arch: ArchSpec | None) -> dict[str, int]:
        """The config with this kernel's own parameters at their best known default where it has none.

        On NVIDIA tiles of K are laid out keys first, and a reduce starts while the attention kernel still runs
        (programmatic dependent launch, sm_90 and newer): both measured faster on an H200.
        """
        own: dict[str, int] = {}
        if arch is not None and arch.backend == "cuda":
            own["KEYS_FIRST"] = 1
            if self.split:
                own["OVERLAP_REDUCE"] = 1
        return dict(config) | {name: value for name, value in own.items() if name not in config}

    def space(self, family: AttentionFamily, arch: ArchSpec) -> Iterator[dict[str, int]]:
        """BLOCK_M, TILE_SIZE, warps, stages, waves_per_eu and the kernel's own parameters, without NUM_SEGMENTS.

        Left out: accumulators that would fill over half of a thread's registers, fewer than 256 logits a warp, tiles
        over 64 KiB of fp16 K, and what cannot fit in LDS.
        """
        head = padded_head_size(max(family.head_size, family.value_head_size))
        hip = arch.backend == "hip"
        accumulators = arch.wave_size * ((arch.max_registers + 1) // 2)
        query_terms: tuple[int, ...] = (0,)
        if family.kv_dtype == "fp8_e4m3" and arch.fp8_matrix:
            query_terms = (1,) if family.q_dtype == "fp8_e4m3" else (0, 2)
        for block_m, tile_size, num_warps, num_stages, waves_per_eu, terms, keys_first in product(
            (16, 32, 64, 128),
            (16, 32, 64, 128, 256),
            (1, 2, 4, 8),
            (1, 2) if hip else (1, 2, 3, 4, 5),
            (0, 2) if hip else (0,),
            query_terms,
            (0,) if hip else (1, 0),
        ):
            if block_m < min_block_m(family) or block_m * head > accumulators * num_warps:
                continue
            if tile_size * head > 64 * 512 or block_m * tile_size < 256 * num_warps:
                continue
            if tile_size < (32 if terms else min_tile_size(family)):
                continue  # fp8 matrix instructions take 32 keys or more
            config = {
                "BLOCK_M": block_m,
                "TILE_SIZE": tile_size,
                "num_warps": num_warps,
                "num_stages": num_stages,
            }
            if hip:
                config["waves_per_eu"] = waves_per_eu
            else:
                config["KEYS_FIRST"] = keys_first
            if terms:
                config["QUERY_TERMS"] = terms
            if fits_lds(config, family, arch):
                yield self.complete(config, arch)

    def segments(self, problem: AttentionProblem, config: Config, arch: ArchSpec, occupancy: int) -> Sequence[int]:
        """Powers of two, and the counts that fill the device's resident programs a whole number of times."""
        if not self.split:
            return (1,)
        tiles = -(-problem.visible_keys // config["TILE_SIZE"])
        blocks = query_blocks(problem, config["BLOCK_M"])[0] * problem.family.num_kv_heads
        value = padded_head_size(problem.family.value_head_size)
        partial_bytes = problem.num_tokens * problem.family.num_query_heads * value * 4  # of one segment
        most_programs = 64 * arch.compute_units
        limit = min(tiles, MAX_SEGMENTS, MAX_PARTIAL_BYTES // partial_bytes, most_programs // blocks)
        counts = {2**i for i in range(1, 9)}
        resident = arch.compute_units * occupancy
        counts |= {waves * resident // blocks for waves in (1, 2, 3, 4)}
        return sorted(count for count in counts if 2 <= count <= limit)

    def work(self, problem: AttentionProblem, config: Config) -> Work:
        """Programs, tiles and bytes, with the quantisation to tiles and pages that the kernel really reads."""
        family = problem.family
        block_m, tile_size, segments = config["BLOCK_M"], config["TILE_SIZE"], config["NUM_SEGMENTS"]
        block_q = block_m // family.group_size
        blocks, _ = query_blocks(problem, block_m)
        tiles = 0
        longest = 0
        # One sequence of average query length stands for all; its blocks differ in the keys they see.
        mean_query = max(round(problem.num_tokens / problem.num_seqs), 1)
        blocks_per_seq = -(-mean_query // block_q)
        step = max(blocks_per_seq // 64, 1)
        sampled = range(0, blocks_per_seq, step)
        for index in sampled:
            last = max(problem.max_seqlen_k - mean_query + min((index + 1) * block_q, mean_query), 1)
            keys = last if family.causal else problem.max_seqlen_k
            first = max(keys - min(block_q, mean_query) - family.sliding_window + 1, 0) if family.sliding_window else 0
            count = -(-keys // tile_size) - first // tile_size
            tiles += count
            longest = max(longest, -(-count // segments))
        scale = blocks_per_seq / len(sampled) * problem.num_seqs * family.num_kv_heads
        head, value = padded_head_size(family.head_size), padded_head_size(family.value_head_size)
        rows = problem.num_tokens * family.num_query_heads
        token_bytes = family.bytes_per_token // family.num_kv_heads
        kv_8bit = DTYPE_BYTES[family.kv_dtype] == 1
        terms = config.get("QUERY_TERMS", 0)
        return Work(
            programs=blocks * family.num_kv_heads * segments,
            tiles_per_program=longest,
            total_tiles=round(tiles * scale),
            rows=block_m,
            tile_size=tile_size,
            head_size=head,
            value_head_size=value,
            tile_flops_16bit=2 * block_m * tile_size * (value if terms else head + value),
            tile_flops_8bit=2 * block_m * tile_size * head * terms,
            tile_converted=tile_size * ((0 if terms else head) + value) if kv_8bit else 0,
            tile_bytes=tile_size * token_bytes,
            pipelined=config["num_stages"] > 1,
            kv_bytes=problem.num_seqs * min(problem.max_seqlen_k, problem.visible_keys + mean_query)
            * family.bytes_per_token,
            query_bytes=rows * (family.head_size * DTYPE_BYTES[family.q_dtype] + family.value_head_size * 2),
            partial_bytes=rows * segments * (value + 2) * 4 if self.split else 0,
            reduce_programs=rows * (value // reduce_block(segments, value)[1]) if self.split else 0,
            reduce_segments=segments if self.split else 0,
        )  # fmt: skip

    def plan(self, inputs: AttentionInputs, config: Config, workspace: Workspace | None = None) -> list[Launch]:
        """The launches of one call; see :class:`~attn_tune.kernels.protocol.Launch`.

        Without a workspace the split route allocates one (on the inputs' device).
        """
        from .plan import plan_paged_attention

        return plan_paged_attention(self.split, inputs, config, workspace)


def reduce_block(num_segments: int, value_size_padded: int) -> tuple[int, int]:
    """(BLOCK_SEGMENTS, BLOCK_D) of the reduce: about 4096 partial elements a program, in as few steps as possible."""
    block_segments = min(max(next_power_of_two(num_segments), 8), 128)
    return block_segments, min(value_size_padded, max(4096 // block_segments, 16))


def compile_options(config: Config) -> dict[str, int]:
    """The part of a config that the compiler takes.

    Fused multiply-adds are asked for by name, because Triton's default changes with 3.10.
    """
    return {name: config[name] for name in COMPILE_OPTIONS if name in config} | {"enable_fp_fusion": True}


ROUTES: dict[str, Any] = {
    route.name: route for route in (PagedAttention("paged_2d", split=False), PagedAttention("paged_3d", split=True))
}
