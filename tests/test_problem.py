"""Problems: dtypes by any name, defaults, what is refused, and the trip through a plain mapping."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.problem import AttentionFamily, AttentionProblem, dtype_name


def family(**fields: Any) -> AttentionFamily:
    return AttentionFamily(**{"num_query_heads": 8, "num_kv_heads": 2, "head_size": 64} | fields)


def problem(**sizes: Any) -> AttentionProblem:
    return AttentionProblem(family(), **{"num_seqs": 3, "max_seqlen_q": 4, "max_seqlen_k": 1000} | sizes)


class TorchDtype:
    """Prints like a torch dtype, which must not be needed to name one."""

    def __str__(self) -> str:
        return "torch.float8_e4m3fn"


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bf16", "bf16"),
        ("BFloat16", "bf16"),
        ("torch.float16", "fp16"),
        ("half", "fp16"),
        ("fp8", "fp8_e4m3"),
        ("float8_e4m3fnuz", "fp8_e4m3"),
        (TorchDtype(), "fp8_e4m3"),
        ("int8", "int8"),
        ("int4", "int4"),
        (None, "none"),
    ],
)
def test_dtypes_have_one_name(dtype: object, name: str) -> None:
    assert dtype_name(dtype) == name


def test_families_of_one_meaning_are_equal_and_hash_alike() -> None:
    short = family(kv_dtype="fp8")
    full = family(kv_dtype="torch.float8_e4m3fn", kv_scales="per_tensor", value_head_size=64, q_dtype="bfloat16")
    assert short == full
    assert len({short, full}) == 1


@pytest.mark.parametrize(
    ("kv_dtype", "scales"), [("bf16", "none"), ("fp16", "none"), ("fp8", "per_tensor"), ("int8", "per_tensor")]
)
def test_only_8_bit_caches_have_scales_by_default(kv_dtype: str, scales: str) -> None:
    assert family(kv_dtype=kv_dtype).kv_scales == scales


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({}, 2 * (64 + 64) * 2),
        ({"kv_dtype": "fp8"}, 2 * (64 + 64)),
        ({"value_head_size": 32}, 2 * (64 + 32) * 2),
        ({"kv_dtype": "int8", "kv_scales": "per_token_head"}, 2 * (64 + 64 + 8)),
    ],
)
def test_a_token_takes_k_v_and_its_scales_over_all_heads(fields: dict[str, Any], size: int) -> None:
    assert family(**fields).bytes_per_token == size


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_query_heads": 0}, "num_query_heads"),
        ({"num_query_heads": 8.0}, "num_query_heads"),
        ({"num_query_heads": True, "num_kv_heads": 1}, "num_query_heads"),
        ({"num_query_heads": 9}, "num_query_heads"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"num_kv_heads": "2"}, "num_kv_heads"),
        ({"page_size": 0}, "page_size"),
        ({"head_size": 7}, "head_size"),
        ({"head_size": 1025}, "head_size"),
        ({"value_head_size": -64}, "value_head_size"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"sliding_window": None}, "sliding_window"),
        ({"q_dtype": "int8"}, "q_dtype"),
        ({"kv_dtype": "fp32"}, "kv_dtype"),
        ({"kv_scales": "per_channel"}, "kv_scales"),
        ({"kv_dtype": "int8", "kv_scales": "none"}, "kv_scales"),
        ({"kv_layout": "contiguous"}, "kv_layout"),
        ({"causal": 1}, "causal"),
        ({"sinks": None}, "sinks"),
        ({"softcap": 50.0}, "softcap"),
        ({"alibi": "true"}, "alibi"),
        ({"qq_bias": 0}, "qq_bias"),
    ],
)
def test_a_bad_family_field_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} "):
        family(**fields)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"num_seqs": 0}, "num_seqs"),
        ({"num_seqs": 1.5}, "num_seqs"),
        ({"max_seqlen_q": 0}, "max_seqlen_q"),
        ({"max_seqlen_q": True}, "max_seqlen_q"),
        ({"max_seqlen_k": -5}, "max_seqlen_k"),
        ({"num_tokens": -1}, "num_tokens"),
        ({"num_tokens": 13}, "num_tokens"),
    ],
)
def test_a_bad_size_is_named(sizes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} "):
        problem(**sizes)


def test_tokens_default_to_full_length_sequences() -> None:
    assert problem().num_tokens == 12
    assert problem(num_tokens=5).num_tokens == 5


def test_a_window_limits_the_visible_keys() -> None:
    windowed = family(sliding_window=128)
    assert AttentionProblem(windowed, 1, 1, 1000).visible_keys == 128
    assert AttentionProblem(windowed, 1, 1, 100).visible_keys == 100
    assert problem().visible_keys == 1000


FAMILIES = [
    family(),
    family(kv_dtype="fp8"),
    family(kv_dtype="fp8", kv_scales="none"),
    family(kv_dtype="int8", kv_scales="per_token_head", kv_layout="shuffled"),
    family(value_head_size=32, page_size=64, sliding_window=128, sinks=True, softcap=True, alibi=True, qq_bias=True),
    family(q_dtype="fp16", kv_dtype="fp16", causal=False),
]


@pytest.mark.parametrize("original", FAMILIES, ids=str)
def test_a_family_comes_back_from_its_mapping(original: AttentionFamily) -> None:
    assert AttentionFamily.from_dict(original.to_dict()) == original


@pytest.mark.parametrize("num_tokens", [0, 7])
@pytest.mark.parametrize("of", FAMILIES, ids=str)
def test_a_problem_comes_back_from_its_mapping(of: AttentionFamily, num_tokens: int) -> None:
    original = AttentionProblem(of, 3, 4, 1000, num_tokens)
    assert AttentionProblem.from_dict(original.to_dict()) == original


def test_a_mapping_leaves_defaults_out() -> None:
    assert "sliding_window" not in family().to_dict()
    assert "value_head_size" not in family().to_dict()
    assert "num_tokens" not in problem().to_dict()
    assert family(sliding_window=64).to_dict()["sliding_window"] == 64


@pytest.mark.parametrize("name", ["num_query_heads", "num_kv_heads", "head_size"])
def test_a_missing_family_field_is_named(name: str) -> None:
    values = family().to_dict()
    del values[name]
    with pytest.raises(ValueError, match=f"{name} is missing"):
        AttentionFamily.from_dict(values)


@pytest.mark.parametrize("name", ["num_seqs", "max_seqlen_q", "max_seqlen_k"])
def test_a_missing_size_is_named(name: str) -> None:
    values = problem().to_dict()
    del values[name]
    with pytest.raises(ValueError, match=f"{name} is missing"):
        AttentionProblem.from_dict(values)


def test_an_unknown_field_is_named_beside_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'num_heads'; known fields: .*num_query_heads"):
        AttentionFamily.from_dict(family().to_dict() | {"num_heads": 8})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "8/2/64 page 16 q bf16 kv bf16"),
        ({"value_head_size": 32, "sliding_window": 128}, "8/2/64v32 page 16 q bf16 kv bf16 window 128"),
        ({"kv_dtype": "fp8", "kv_scales": "per_token_head"}, "8/2/64 page 16 q bf16 kv fp8_e4m3 per-token scales"),
        ({"kv_layout": "shuffled", "sinks": True, "causal": False}, "8/2/64 page 16 q bf16 kv bf16 shuffled sinks not"),
    ],
)
def test_a_family_reads_as_one_line(fields: dict[str, Any], text: str) -> None:
    assert str(family(**fields)).startswith(text)
    assert str(problem()).startswith("3 x 4 @ 1000, 8/2/64 ")
