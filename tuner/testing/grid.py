"""The cases: short ones, which Triton's interpreter does in a second each, and long ones for a GPU."""

from __future__ import annotations

from itertools import product
from typing import Any

from ..problem import AttentionFamily
from . import variations as vary
from .case import Case, Variation

_F = AttentionFamily
_PER_TOKEN = "per_token_head"

# (query lengths, key lengths)
_MIXED = (1, 2, 4, 33), (70, 5, 130, 60)
_SHORT = (1, 4, 2), (101, 37, 5)
_DECODE = (1, 1), (75, 33)
_WINDOWED = (1, 5), (300, 205)
_PADDED = (1, 0, 4, 3), (70, 5, 130, 0)


def _case(
    name: str,
    family: AttentionFamily,
    lengths: tuple[tuple[int, ...], tuple[int, ...]] = _SHORT,
    *variations: Variation,
    **config: int,
) -> Case:
    return Case(name, family, *lengths, config=config, variations=variations)


def _small(**fields: Any) -> AttentionFamily:
    """The family of most cases: 4 query heads on 2 KV heads of 64."""
    return _F(**{"num_query_heads": 4, "num_kv_heads": 2, "head_size": 64} | fields)


_DTYPES = [
    _case("bf16", _small(), _MIXED),
    _case("fp16", _small(q_dtype="fp16", kv_dtype="fp16")),
    _case("fp8 cache", _small(kv_dtype="fp8"), _MIXED),
    _case("fp8 cache, per-token scales", _small(kv_dtype="fp8", kv_scales=_PER_TOKEN), _MIXED),
    _case("fp8 cache without scales", _small(kv_dtype="fp8", kv_scales="none")),
    _case("fp8 cache, fp16 query", _small(q_dtype="fp16", kv_dtype="fp8")),
    _case("int8 cache", _small(kv_dtype="int8")),
    _case("int8 cache, per-token scales", _small(q_dtype="fp16", kv_dtype="int8", kv_scales=_PER_TOKEN)),
    _case("fp8 query", _small(q_dtype="fp8", kv_dtype="fp8"), QUERY_TERMS=1),
    _case("fp8 query in fp16", _small(q_dtype="fp8", kv_dtype="fp8")),
    _case(
        "fp8 query, per-token scales",
        _small(q_dtype="fp8", kv_dtype="fp8", kv_scales=_PER_TOKEN),
        QUERY_TERMS=1,
        KEYS_FIRST=1,
    ),
    _case("two-term query", _small(kv_dtype="fp8"), _MIXED, QUERY_TERMS=2),
    _case(
        "two-term query, per-token scales",
        _small(q_dtype="fp16", kv_dtype="fp8", kv_scales=_PER_TOKEN),
        QUERY_TERMS=2,
        KEYS_FIRST=1,
    ),
    _case("keys first", _small(), KEYS_FIRST=1),
    _case("keys first, fp8 cache", _small(kv_dtype="fp8"), KEYS_FIRST=1),
    _case("dimensions first", _small(), KEYS_FIRST=0),
    _case("dimensions first, fp8 cache", _small(kv_dtype="fp8"), KEYS_FIRST=0),
    _case("dimensions first, fp8 query", _small(q_dtype="fp8", kv_dtype="fp8"), QUERY_TERMS=1, KEYS_FIRST=0),
    # Values of one sign and fp16 outputs, where a rounding bias of 5e-4 shows.
    _case("bias, fp16", _small(q_dtype="fp16", kv_dtype="fp16"), _MIXED, vary.positive_values),
    _case(
        "bias, per-token scales",
        _small(q_dtype="fp16", kv_dtype="fp8", kv_scales=_PER_TOKEN),
        _MIXED,
        vary.positive_values,
    ),
    _case(
        "bias, two-term query",
        _small(q_dtype="fp16", kv_dtype="fp8", kv_scales=_PER_TOKEN),
        _SHORT,
        vary.positive_values,
        QUERY_TERMS=2,
    ),
    _case("bias, int8", _small(q_dtype="fp16", kv_dtype="int8"), _SHORT, vary.positive_values),
]

_HEADS = [
    _case("heads 4/4", _F(4, 4, 64)),
    _case("heads 8/2", _F(8, 2, 64)),
    _case("heads 5/1, size 80", _F(5, 1, 80), _MIXED),
    _case("heads 64/8", _F(64, 8, 64), ((1, 2), (45, 12))),
    _case("heads 8/1, size 128", _F(8, 1, 128), BLOCK_M=32),
    _case("heads 48/8", _F(48, 8, 64, kv_dtype="fp8"), ((1, 2), (45, 12))),
    _case("heads 16/1, size 256", _F(16, 1, 256, kv_dtype="fp8"), BLOCK_M=64),
    _case("heads 24/1", _F(24, 1, 64)),
    _case("size 512", _F(2, 1, 512, page_size=32, kv_dtype="fp8"), _DECODE, num_warps=8),
    _case("size 80, fp8 cache", _F(4, 2, 80, kv_dtype="fp8", kv_scales=_PER_TOKEN)),
    _case("size 72", _F(4, 2, 72)),
    _case("values longer than keys", _small(value_head_size=128)),
    _case("values shorter than keys", _small(head_size=192, value_head_size=128, kv_dtype="fp8")),
    _case("values of odd size", _small(value_head_size=40, q_dtype="fp16", kv_dtype="fp16")),
    _case("large blocks", _small(), _MIXED, BLOCK_M=128, num_warps=8),
]

_PAGES = [
    _case("tile equal to the page", _small(), TILE_SIZE=16),
    _case("tile of four pages", _small(kv_dtype="fp8"), TILE_SIZE=64),
    _case("page 32", _small(page_size=32, kv_dtype="fp8", kv_scales=_PER_TOKEN), TILE_SIZE=32),
    _case("page 48, smaller tile", _small(page_size=48), TILE_SIZE=16),
    _case("page 48, crossed by tiles", _small(page_size=48, kv_dtype="fp8", kv_scales=_PER_TOKEN), _MIXED),
    _case("page 48, larger tile", _small(page_size=48), TILE_SIZE=64),
    _case("page 64", _small(page_size=64, kv_dtype="int8"), TILE_SIZE=64),
    _case("page 128", _small(page_size=128, kv_dtype="fp8", kv_scales=_PER_TOKEN)),
    _case("page 544", _small(page_size=544, kv_dtype="fp8"), ((1, 4), (600, 37))),
    _case("page 544, crossed by tiles", _small(page_size=544), ((1, 2), (1100, 37)), TILE_SIZE=64),
    _case("page 1", _small(page_size=1)),
]

_FEATURES = [
    _case("window 64", _small(sliding_window=64), _WINDOWED),
    _case("window 128, page 48", _small(sliding_window=128, page_size=48, kv_dtype="fp8"), _WINDOWED, TILE_SIZE=64),
    _case("window 256, per-token scales", _small(sliding_window=256, kv_dtype="fp8", kv_scales=_PER_TOKEN), _WINDOWED),
    _case("window 1", _small(sliding_window=1)),
    _case("window in a prompt", _small(sliding_window=20), ((50,), (61,)), BLOCK_M=64),
    _case("window, far logits", _small(sliding_window=40), _WINDOWED, vary.opposed_signs),
    _case("far logits", _small(), _SHORT, vary.opposed_signs),
    _case("window, sinks", _small(sliding_window=40, sinks=True), _WINDOWED, NUM_SEGMENTS=7),
    _case("softcap", _small(softcap=True)),
    _case("softcap, huge logits", _small(softcap=True), _SHORT, vary.huge_logits),
    _case("softcap, window 128, page 544", _small(softcap=True, sliding_window=128, page_size=544), _WINDOWED),
    _case("sinks", _small(sinks=True), _MIXED),
    _case("sinks, empty segments", _small(sinks=True, kv_dtype="fp8"), ((1, 3), (40, 9)), NUM_SEGMENTS=20),
    _case("alibi", _small(alibi=True)),
    _case("qq_bias", _small(qq_bias=True)),
    _case("not causal", _small(causal=False)),
    _case(
        "not causal, per-token scales, sinks", _small(causal=False, kv_dtype="fp8", kv_scales=_PER_TOKEN, sinks=True)
    ),
    _case("shuffled", _small(kv_layout="shuffled")),
    _case("shuffled, fp8 cache", _small(kv_layout="shuffled", kv_dtype="fp8", page_size=48), KEYS_FIRST=1),
    _case("shuffled, int8 cache", _small(kv_layout="shuffled", kv_dtype="int8", head_size=80), TILE_SIZE=64),
    _case("shuffled, per-token scales", _small(kv_layout="shuffled", kv_dtype="fp8", kv_scales=_PER_TOKEN)),
    _case("shuffled, two-term query", _small(kv_layout="shuffled", kv_dtype="fp8"), QUERY_TERMS=2),
    _case(
        "every feature",
        _small(
            kv_layout="shuffled",
            kv_dtype="fp8",
            kv_scales=_PER_TOKEN,
            value_head_size=48,
            sliding_window=64,
            sinks=True,
            softcap=True,
            alibi=True,
            qq_bias=True,
        ),
        _MIXED,
        QUERY_TERMS=2,
    ),
    _case("fp8 output", _small(kv_dtype="fp8"), _SHORT, vary.fp8_output),
    _case("fp8 output, saturated", _small(q_dtype="fp8", kv_dtype="fp8"), _SHORT, vary.clamped_output),
    _case("fp8 output, sinks", _small(sinks=True), _SHORT, vary.fp8_output, vary.padded),
]

_TENSORS = [
    _case("empty sequences", _small(), _PADDED),
    _case(
        "empty sequences, per-token scales, sinks", _small(kv_dtype="fp8", kv_scales=_PER_TOKEN, sinks=True), _PADDED
    ),
    _case("empty sequences, window", _small(sliding_window=32), _PADDED),
    _case("rows of padding", _small(sinks=True), _PADDED, vary.padding_rows),
    _case("padded tensors", _small(), _SHORT, vary.padded),
    _case("padded tensors, fp8 cache", _small(kv_dtype="fp8", head_size=80), _SHORT, vary.padded),
    _case("strided elements", _small(value_head_size=40), _SHORT, vary.strided_elements),
    _case("heads first", _small(), _SHORT, vary.heads_first),
    _case(
        "heads first, scales by slot",
        _small(kv_dtype="fp8", kv_scales=_PER_TOKEN, page_size=32),
        _SHORT,
        vary.heads_first,
        vary.scales_by_slot,
    ),
    _case("K and V in one buffer", _small(kv_dtype="fp8"), _SHORT, vary.shared_buffer),
    _case("frozen capacity", _small(kv_dtype="fp8"), _PADDED, vary.padding_rows, vary.frozen_capacity),
    _case("one segment", _small(), _DECODE, NUM_SEGMENTS=1),
    _case("more segments than tiles", _F(2, 1, 64), ((1, 3), (90, 5)), NUM_SEGMENTS=150),
    _case("one key", _small(kv_dtype="fp8", kv_scales=_PER_TOKEN), ((1, 1), (1, 1))),
    _case("one sequence", _small(), ((19,), (19,))),
]

CASES: tuple[Case, ...] = tuple(_DTYPES + _HEADS + _PAGES + _FEATURES + _TENSORS)

_FLAVOURS: tuple[dict[str, Any], ...] = (
    {},
    {"kv_dtype": "fp8"},
    {"q_dtype": "fp16", "kv_dtype": "fp16"},
    {"kv_dtype": "fp8", "kv_scales": _PER_TOKEN},
    {"q_dtype": "fp8", "kv_dtype": "fp8"},
    {"kv_dtype": "int8", "kv_scales": _PER_TOKEN},
)
_LONG_LENGTHS = {
    "uneven": ((1, 5, 129), (1328, 18, 463)),
    "decode": ((1, 1, 1), (523, 37, 2011)),
    "prompts": ((567, 34, 777, 2, 1), (1275, 345, 777, 343, 15)),
    "batch": ((1,) * 32, (8192,) * 32),
}


def _long_cases() -> list[Case]:
    """Every pair of heads and head size, with the other properties dealt out so that each meets many others."""
    cases = []
    heads = ((4, 4), (8, 2), (5, 1), (64, 8), (8, 1), (48, 8))
    for (i, (num_query_heads, num_kv_heads)), (j, head_size) in product(
        enumerate(heads), enumerate((64, 128, 256, 512))
    ):
        family = _F(
            num_query_heads,
            num_kv_heads,
            head_size,
            page_size=(16, 32, 64, 544)[(i + j) % 4],
            sliding_window=(0, 64, 128, 256)[(i + 3 * j) % 4],
            softcap=bool((i // 2 + j) % 2),
            **_FLAVOURS[(2 * i + j) % 6],
        )
        config = {
            "BLOCK_M": min((16, 64, 32, 128)[(i + 2 * j) % 4], 64 * 512 // head_size),
            "TILE_SIZE": (32, 64, 128)[(i + j) % 3],
            "num_stages": (2, 3, 1)[(i + 2 * j) % 3],
        }
        if family.q_dtype == "fp8_e4m3":
            config["QUERY_TERMS"] = 1
        for name, lengths in _LONG_LENGTHS.items():
            cases.append(_case(f"{name} {family}", family, lengths, vary.wide_table, **config))
    return cases


LONG_CASES: tuple[Case, ...] = tuple(_long_cases())

# Caches over 2 GiB and over 2**31 elements (of K, and of V), of which the batch reads pages from end to end.
_SPREAD = (1, 4, 1, 2) * 16, (1000, 2000, 300, 4000) * 16
LARGE_CASES: tuple[Case, ...] = (
    Case("bf16 cache over 2 GiB", _F(8, 1, 128), *_SPREAD, num_pages=(5 << 28) // (16 * 128)),
    Case("fp8 cache over 2**31 elements", _F(16, 2, 256, kv_dtype="fp8"), *_SPREAD, num_pages=(9 << 28) // (16 * 512)),
    Case("bf16 cache over 2**31 elements", _F(8, 8, 128, page_size=32), *_SPREAD, num_pages=(9 << 28) // (32 * 1024)),
    Case(
        "shuffled fp8 cache over 2**31 elements",
        _F(8, 2, 128, page_size=64, kv_dtype="fp8", kv_scales=_PER_TOKEN, kv_layout="shuffled"),
        *_SPREAD,
        num_pages=(9 << 28) // (64 * 256),
    ),
)
