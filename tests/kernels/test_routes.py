"""What the routes say of themselves: support, configurations, segments and work."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.arch import ARCHS, ArchSpec, get_arch
from attn_tune.kernels import get_kernel
from attn_tune.kernels.lds import fits_lds, min_block_m, min_tile_size
from attn_tune.kernels.routes import MAX_SEGMENTS, padded_head_size, query_blocks, reduce_block
from attn_tune.problem import AttentionFamily, AttentionProblem

GFX950 = get_arch("gfx950")
SMALL = AttentionFamily(4, 2, 64)
CONFIG = {"BLOCK_M": 16, "TILE_SIZE": 32, "NUM_SEGMENTS": 3, "num_warps": 4, "num_stages": 2}


def family(**fields: Any) -> AttentionFamily:
    return AttentionFamily(**{"num_query_heads": 8, "num_kv_heads": 2, "head_size": 64} | fields)


@pytest.fixture(params=["paged_2d", "paged_3d"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"q_dtype": "fp8"}, "kv_dtype"),
        ({"q_dtype": "fp8", "kv_dtype": "int8"}, "kv_dtype"),
        ({"kv_dtype": "fp16"}, "q_dtype"),
        ({"kv_scales": "per_tensor"}, "kv_scales"),
        ({"kv_scales": "per_token_head"}, "kv_scales"),
        ({"sliding_window": 64, "causal": False}, "sliding_window"),
        ({"num_query_heads": 129, "num_kv_heads": 1}, "num_query_heads"),
        ({"kv_layout": "shuffled", "head_size": 60}, "head_size"),
        ({"kv_layout": "shuffled", "kv_dtype": "fp8", "page_size": 24}, "page_size"),
        ({"head_size": 520}, "head_size"),
        ({"value_head_size": 520}, "head_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_route_and_argument(
    route: str, fields: dict[str, Any], argument: str
) -> None:
    reason = get_kernel(route).supports(family(**fields), GFX950)
    assert reason is not None
    assert reason.startswith(f"{route}: ")
    assert argument in reason


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"q_dtype": "fp16", "kv_dtype": "fp16", "head_size": 512},
        {"q_dtype": "fp8", "kv_dtype": "fp8", "kv_scales": "per_token_head"},
        {"kv_dtype": "int8", "kv_layout": "shuffled", "page_size": 48},
        {"num_query_heads": 128, "num_kv_heads": 1, "head_size": 80, "value_head_size": 40, "page_size": 544},
        {"sliding_window": 128, "sinks": True, "softcap": True, "alibi": True, "qq_bias": True},
        {"causal": False},
    ],
)
def test_every_feature_is_supported_on_every_arch(route: str, fields: dict[str, Any], arch: ArchSpec) -> None:
    assert get_kernel(route).supports(family(**fields), arch) is None


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_query_heads": 48, "num_kv_heads": 1, "head_size": 128},
        {"head_size": 512, "kv_dtype": "fp8"},
        {"q_dtype": "fp8", "kv_dtype": "fp8", "head_size": 256},
        {"kv_dtype": "int8", "head_size": 80},
    ],
)
def test_a_space_holds_only_what_can_run(route: str, fields: dict[str, Any], arch: ArchSpec) -> None:
    asked = family(**fields)
    kernel = get_kernel(route)
    configs = list(kernel.space(asked, arch))
    assert configs
    assert len({tuple(sorted(config.items())) for config in configs}) == len(configs)
    for config in configs:
        assert config["BLOCK_M"] >= min_block_m(asked)
        assert config["TILE_SIZE"] >= min_tile_size(asked)
        assert fits_lds(config, asked, arch)
        assert config["BLOCK_M"] * config["TILE_SIZE"] >= 256 * config["num_warps"]
        assert "NUM_SEGMENTS" not in config
        assert ("waves_per_eu" in config) == (arch.backend == "hip")
        assert kernel.complete(config, arch) == config
        terms = config.get("QUERY_TERMS", 0)
        assert not terms or (asked.kv_dtype == "fp8_e4m3" and arch.fp8_matrix and config["TILE_SIZE"] >= 32)


def test_accumulators_in_a_space_leave_half_of_the_registers(route: str) -> None:
    for config in get_kernel(route).space(family(head_size=512), get_arch("sm_90")):
        per_thread = config["BLOCK_M"] * 512 / (config["num_warps"] * 32)
        assert per_thread <= 128


@pytest.mark.parametrize(
    ("kv_dtype", "q_dtype", "arch", "terms"),
    [
        ("bf16", "bf16", "gfx950", {0}),
        ("int8", "bf16", "gfx950", {0}),
        ("fp8", "bf16", "gfx950", {0, 2}),
        ("fp8", "fp8", "gfx950", {1}),
        ("fp8", "bf16", "gfx942", {0}),  # its matrix unit takes another e4m3
        ("fp8", "fp8", "gfx942", {0}),
    ],
)
def test_native_fp8_products_are_offered_where_the_matrix_unit_has_them(
    route: str, kv_dtype: str, q_dtype: str, arch: str, terms: set[int]
) -> None:
    configs = get_kernel(route).space(family(kv_dtype=kv_dtype, q_dtype=q_dtype), get_arch(arch))
    assert {config.get("QUERY_TERMS", 0) for config in configs} == terms


def test_missing_parameters_get_the_defaults_of_the_arch() -> None:
    own = {"paged_2d": {"KEYS_FIRST": 1}, "paged_3d": {"KEYS_FIRST": 1, "OVERLAP_REDUCE": 1}}
    for name, expected in own.items():
        kernel = get_kernel(name)
        assert kernel.complete(CONFIG, get_arch("sm_90")) == CONFIG | expected
        assert kernel.complete(CONFIG, GFX950) == kernel.complete(CONFIG, None) == CONFIG
        assert kernel.complete(CONFIG | {"KEYS_FIRST": 0}, get_arch("sm_90"))["KEYS_FIRST"] == 0


@pytest.mark.parametrize(
    ("max_seqlen_k", "window", "num_seqs", "occupancy", "expected"),
    [
        (20, 0, 1, 1, []),  # one tile
        (64, 0, 1, 1, [2]),
        (1000, 0, 1, 1, [2, 4, 8, 16, 32]),  # 32 tiles; to fill 256 units would take more
        (1000, 100, 1, 1, [2, 4]),  # the window leaves 4 tiles
        # 20 programs on 256 units, one, two, three and four times over: 12, 25, 38 and 51
        (70000, 0, 20, 1, [2, 4, 8, 12, 16, 25, 32, 38, 51, 64, 128, 256]),
        (70000, 0, 64, 2, [2, 4, 8, 16, 24, 32, 64, 128, 256]),
    ],
)
def test_segments_fill_the_device_and_do_not_exceed_the_tiles(
    max_seqlen_k: int, window: int, num_seqs: int, occupancy: int, expected: list[int]
) -> None:
    problem = AttentionProblem(AttentionFamily(16, 1, 256, sliding_window=window), num_seqs, 1, max_seqlen_k)
    assert list(get_kernel("paged_3d").segments(problem, CONFIG, GFX950, occupancy)) == expected
    assert tuple(get_kernel("paged_2d").segments(problem, CONFIG, GFX950, occupancy)) == (1,)


def test_segments_have_an_upper_limit() -> None:
    problem = AttentionProblem(SMALL, 1, 1, 1_000_000)
    assert max(get_kernel("paged_3d").segments(problem, CONFIG, GFX950, 16)) == MAX_SEGMENTS


@pytest.mark.parametrize(
    ("num_seqs", "max_seqlen_q", "num_tokens", "block_m", "expected"),
    [
        (5, 1, 5, 16, (5, 1)),  # decode: one block each
        (3, 4, 12, 16, (3, 1)),  # verify: 4 of the 8 positions of a block
        (3, 20, 60, 16, (9, 3)),
        (4, 33, 40, 16, (9, 0)),  # 40 // 8 + 4 packed blocks against 4 * 5
        (1, 4096, 4096, 64, (128, 128)),
    ],
)
def test_blocks_are_packed_where_that_takes_fewer(
    num_seqs: int, max_seqlen_q: int, num_tokens: int, block_m: int, expected: tuple[int, int]
) -> None:
    problem = AttentionProblem(SMALL, num_seqs, max_seqlen_q, 5000, num_tokens)
    assert query_blocks(problem, block_m) == expected


def test_work_of_a_decode_counted_by_hand() -> None:
    problem = AttentionProblem(SMALL, 3, 1, 100)
    work = get_kernel("paged_2d").work(problem, CONFIG | {"NUM_SEGMENTS": 1})
    assert work.programs == 3 * 2
    assert (work.tiles_per_program, work.total_tiles) == (4, 4 * 6)
    assert (work.rows, work.tile_size, work.head_size, work.value_head_size) == (16, 32, 64, 64)
    assert (work.tile_flops_16bit, work.tile_flops_8bit, work.tile_converted) == (2 * 16 * 32 * 128, 0, 0)
    assert work.tile_bytes == 32 * (64 + 64) * 2
    assert work.kv_bytes == 3 * 100 * 2 * (64 + 64) * 2
    assert work.query_bytes == 3 * 4 * (64 + 64) * 2
    assert (work.partial_bytes, work.reduce_programs, work.reduce_segments) == (0, 0, 0)


def test_work_of_a_split_decode_counted_by_hand() -> None:
    work = get_kernel("paged_3d").work(AttentionProblem(SMALL, 3, 1, 100), CONFIG)
    assert work.programs == 3 * 2 * 3
    assert (work.tiles_per_program, work.total_tiles) == (2, 4 * 6)
    assert work.partial_bytes == 3 * 4 * 3 * (64 + 2) * 4
    assert (work.reduce_programs, work.reduce_segments) == (3 * 4, 3)


@pytest.mark.parametrize(
    ("terms", "flops_16bit", "flops_8bit", "converted"), [(0, 96 + 40, 0, 96 + 40), (1, 40, 96, 40), (2, 40, 192, 40)]
)
def test_work_of_an_fp8_cache_depends_on_the_query_terms(
    terms: int, flops_16bit: int, flops_8bit: int, converted: int
) -> None:
    """Head sizes 96 and 40 are computed as 128 and 64; an fp8 product needs no converted keys."""
    padded = {96: 128, 40: 64, 192: 256, 0: 0, 136: 192}
    asked = family(kv_dtype="fp8", kv_scales="per_token_head", head_size=96, value_head_size=40)
    work = get_kernel("paged_2d").work(AttentionProblem(asked, 1, 1, 64), CONFIG | {"QUERY_TERMS": terms})
    assert work.tile_flops_16bit == 2 * 16 * 32 * padded[flops_16bit]
    assert work.tile_flops_8bit == 2 * 16 * 32 * padded[flops_8bit]
    assert work.tile_converted == 32 * padded[converted]
    assert work.tile_bytes == 32 * (96 + 40 + 2 * 4)


@pytest.mark.parametrize(("window", "causal"), [(0, True), (20, True), (100, True), (0, False)])
@pytest.mark.parametrize(
    ("num_seqs", "query_len", "kv_len"), [(1, 64, 64), (3, 16, 100), (2, 8, 8), (4, 1, 77), (1, 256, 300)]
)
@pytest.mark.parametrize("tile_size", [16, 64])
def test_tiles_are_those_that_hold_a_visible_key(
    num_seqs: int, query_len: int, kv_len: int, tile_size: int, window: int, causal: bool
) -> None:
    asked = family(sliding_window=window, causal=causal)  # 4 query positions in 16 rows
    per_block = []
    for first in range(0, query_len, 4):
        tiles = set()
        for query in range(first, min(first + 4, query_len)):
            last = kv_len - query_len + query if causal else kv_len - 1
            start = max(last - window + 1, 0) if window else 0
            tiles.update(key // tile_size for key in range(start, last + 1))
        per_block.append(len(tiles))
    problem = AttentionProblem(asked, num_seqs, query_len, kv_len)
    work = get_kernel("paged_2d").work(problem, CONFIG | {"TILE_SIZE": tile_size})
    assert work.tiles_per_program <= max(per_block) <= work.tiles_per_program * CONFIG["NUM_SEGMENTS"]
    assert work.total_tiles == sum(per_block) * num_seqs * 2


@pytest.mark.parametrize(("head_size", "padded"), [(8, 16), (16, 16), (64, 64), (80, 128), (192, 256), (512, 512)])
def test_head_sizes_are_padded_to_what_a_matrix_unit_takes(head_size: int, padded: int) -> None:
    assert padded_head_size(head_size) == padded


@pytest.mark.parametrize("num_segments", [1, 2, 5, 16, 100, 256])
@pytest.mark.parametrize("value_size", [16, 64, 128, 512])
def test_a_reduce_covers_the_value_size_in_whole_programs(num_segments: int, value_size: int) -> None:
    block_segments, block_d = reduce_block(num_segments, value_size)
    assert value_size % block_d == 0
    assert block_segments >= min(num_segments, 128)
    assert block_segments * block_d <= 4096
