"""The words that describe a call follow its family."""

from __future__ import annotations

from typing import Any

import pytest

from attn_tune.kernels.description import argument_meanings, reference_formulas
from attn_tune.problem import AttentionFamily, AttentionProblem


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sinks": True}, "exp(sinks[hq])"),
        ({"softcap": True}, "tanh"),
        ({"alibi": True}, "alibi_slopes[hq] * (j - offset)"),
        ({"qq_bias": True}, "qq_bias[i, j - offset]"),
        ({"sliding_window": 77}, "offset + i - j < 77"),
        ({"kv_dtype": "fp8_e4m3"}, "k_scale; "),
        ({"kv_dtype": "int8", "kv_scales": "per_token_head"}, "k_scale[page, h, slot]"),
        ({"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}, "q_scale"),
        ({"kv_layout": "shuffled"}, "k[page, h, :, slot, :]"),
    ],
)
def test_formulas_name_what_the_family_has_and_nothing_else(fields: dict[str, Any], text: str) -> None:
    assert text in "\n".join(reference_formulas(AttentionFamily(8, 2, 64, **fields)))
    assert text not in "\n".join(reference_formulas(AttentionFamily(8, 2, 64)))


@pytest.mark.parametrize("causal", [True, False])
def test_only_causal_attention_masks(causal: bool) -> None:
    text = "\n".join(reference_formulas(AttentionFamily(8, 2, 64, causal=causal)))
    assert ("-inf unless j <= offset + i" in text) == causal


def test_query_starts_of_a_mixed_batch_are_left_open() -> None:
    family = AttentionFamily(8, 2, 64)
    equal = argument_meanings(AttentionProblem(family, 4, 8, 100))["cu_seqlens_q_ptr"].contents
    mixed = argument_meanings(AttentionProblem(family, 4, 8, 100, num_tokens=11))["cu_seqlens_q_ptr"].contents
    assert equal == "s * 8 for s = 0 ... 4"
    assert mixed == "from 0 to 11, in steps of at most 8"


@pytest.mark.parametrize(("max_seqlen_k", "pages"), [(100, 4 * 7), (96, 4 * 6), (1, 4)])
def test_the_cache_needs_a_page_for_every_started_one(max_seqlen_k: int, pages: int) -> None:
    meanings = argument_meanings(AttentionProblem(AttentionFamily(8, 2, 64, page_size=16), 4, 1, max_seqlen_k))
    assert f"at least {pages} pages" in meanings["k_ptr"].contents
