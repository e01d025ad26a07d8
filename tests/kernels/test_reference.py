"""The fp32 reference against torch's own attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_tune.kernels.inputs import AttentionInputs
from attn_tune.kernels.random_inputs import random_inputs
from attn_tune.kernels.reference import gather_cache, reference_attention, relative_error
from attn_tune.problem import AttentionFamily, AttentionProblem


def inputs_of(query_lens: list[int], kv_lens: list[int], **fields: Any) -> AttentionInputs:
    family = AttentionFamily(**{"num_query_heads": 4, "num_kv_heads": 2, "head_size": 32} | fields)
    problem = AttentionProblem(family, len(query_lens), max(query_lens), max(kv_lens), sum(query_lens))
    return random_inputs(problem, "cpu", query_lens=query_lens, kv_lens=kv_lens)


def torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> torch.Tensor:
    """torch's attention of one sequence: tokens, heads, head size; ``bias`` is added to the logits."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return scaled_dot_product_attention(
        q.float().transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=bias,
        scale=scale,
    )[0].transpose(0, 1)


def mask(visible: torch.Tensor) -> torch.Tensor:
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))


def distance(query_len: int, kv_len: int) -> torch.Tensor:
    """Query position minus key position."""
    return torch.arange(kv_len - query_len, kv_len)[:, None] - torch.arange(kv_len)[None, :]


@pytest.mark.parametrize(
    ("query_len", "kv_len"),
    [(1, 1), (1, 37), (5, 37), (37, 37), (300, 321)],  # 300 rows: more than the reference does at once
)
@pytest.mark.parametrize("window", [0, 7])
def test_causal_attention_with_a_window(query_len: int, kv_len: int, window: int) -> None:
    inputs = inputs_of([query_len], [kv_len], sliding_window=window)
    k, v = gather_cache(inputs, 0, kv_len)
    behind = distance(query_len, kv_len)
    visible = (behind >= 0) & ((behind < window) | (window == 0))
    expected = torch_attention(inputs.q, k, v, inputs.softmax_scale, mask(visible))
    torch.testing.assert_close(reference_attention(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (5, 1), (8, 2)])
def test_every_ratio_of_query_to_kv_heads(heads: tuple[int, int]) -> None:
    inputs = inputs_of([6], [19], num_query_heads=heads[0], num_kv_heads=heads[1], causal=False, value_head_size=48)
    k, v = gather_cache(inputs, 0, 19)
    expected = torch_attention(inputs.q, k, v, inputs.softmax_scale, None)
    torch.testing.assert_close(reference_attention(inputs), expected, rtol=1e-4, atol=1e-5)


def test_alibi_and_query_bias_are_added_to_the_logits() -> None:
    inputs = inputs_of([6], [19], alibi=True, qq_bias=True)
    assert inputs.alibi_slopes is not None
    assert inputs.qq_bias is not None
    k, v = gather_cache(inputs, 0, 19)
    behind = distance(6, 19)
    among_queries = torch.zeros(6, 19)
    among_queries[:, 13:] = inputs.qq_bias
    # A term that is the same for all keys of a row leaves the softmax as it was: the distance alone matters.
    bias = mask(behind >= 0) - inputs.alibi_slopes[:, None, None] * behind + among_queries
    expected = torch_attention(inputs.q, k, v, inputs.softmax_scale, bias)
    torch.testing.assert_close(reference_attention(inputs), expected, rtol=1e-4, atol=1e-5)


def test_a_sink_is_one_more_logit_whose_value_is_zero() -> None:
    inputs = inputs_of([6], [19], sinks=True)
    assert inputs.sinks is not None
    k, v = gather_cache(inputs, 0, 19)
    k, v = (torch.cat([cache, torch.zeros(1, 2, 32)]) for cache in (k, v))
    bias = mask(distance(6, 19) >= 0).expand(4, 6, 19)
    bias = torch.cat([bias, inputs.sinks.float()[:, None, None].expand(4, 6, 1)], dim=2)
    expected = torch_attention(inputs.q, k, v, inputs.softmax_scale, bias)
    torch.testing.assert_close(reference_attention(inputs), expected, rtol=1e-4, atol=1e-5)


def test_a_softcap_bounds_the_logits() -> None:
    inputs = inputs_of([1], [2], softcap=True)
    capped = replace(inputs, softcap=0.7, q=inputs.q * 100)
    k, v = gather_cache(inputs, 0, 2)
    logits = torch.einsum("hd,khd->hk", capped.q[0].float(), k.repeat_interleave(2, 1)) * capped.softmax_scale
    assert logits.abs().max() > 5
    weights = torch.softmax(0.7 * torch.tanh(logits / 0.7), dim=1)
    expected = torch.einsum("hk,khd->hd", weights, v.repeat_interleave(2, 1))
    torch.testing.assert_close(reference_attention(capped)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_scales", ["per_tensor", "per_token_head"])
@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_scales_multiply_the_cache_token_by_token(kv_dtype: str, kv_scales: str) -> None:
    inputs = inputs_of([1], [40], kv_dtype=kv_dtype, kv_scales=kv_scales)
    assert inputs.k_scale is not None
    k, _ = gather_cache(inputs, 0, 40)
    for token in (0, 17, 39):
        page, slot = int(inputs.block_table[0, token // 16]), token % 16
        scale = inputs.k_scale[page, :, slot, None] if inputs.k_scale.dim() == 3 else inputs.k_scale
        torch.testing.assert_close(k[token], inputs.k[page, slot].float() * scale)


def test_an_fp8_query_is_multiplied_by_its_scale() -> None:
    inputs = inputs_of([3], [19], q_dtype="fp8", kv_dtype="fp8")
    assert inputs.q_scale is not None
    k, v = gather_cache(inputs, 0, 19)
    expected = torch_attention(
        inputs.q.float() * inputs.q_scale, k, v, inputs.softmax_scale, mask(distance(3, 19) >= 0)
    )
    torch.testing.assert_close(reference_attention(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8", "int8"])
def test_a_shuffled_cache_holds_the_same_tokens(kv_dtype: str) -> None:
    inputs = inputs_of([3, 1], [40, 70], kv_dtype=kv_dtype, page_size=32)
    pages, page, heads, size = inputs.k.shape
    x = 16 // inputs.k.element_size()
    shuffled = replace(
        inputs,
        k=inputs.k.view(pages, page, heads, size // x, x).permute(0, 2, 3, 1, 4).contiguous(),
        v=inputs.v.view(pages, page // x, x, heads, size).permute(0, 3, 1, 4, 2).contiguous(),
    )
    assert shuffled.family.kv_layout == "shuffled"
    torch.testing.assert_close(reference_attention(shuffled), reference_attention(inputs), rtol=0, atol=0)


def test_sequences_of_a_batch_do_not_mix() -> None:
    together = inputs_of([2, 5], [40, 23])
    out = reference_attention(together)
    alone = replace(
        together,
        q=together.q[2:],
        out=together.out[2:],
        block_table=together.block_table[1:],
        cu_seqlens_q=torch.tensor([0, 5], dtype=torch.int32),
        seqused_k=together.seqused_k[1:],
    )
    torch.testing.assert_close(out[2:], reference_attention(alone))


def test_an_output_scale_divides() -> None:
    inputs = inputs_of([2], [9])
    scaled = replace(inputs, out_scale=torch.tensor([0.25]))
    torch.testing.assert_close(reference_attention(scaled), reference_attention(inputs) * 4)


def test_rows_without_a_result_are_nan() -> None:
    inputs = inputs_of([1, 2, 0], [9, 0, 5])
    out = reference_attention(inputs)
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1:]).all()


class TestRelativeError:
    expected = torch.tensor([[3.0, 4.0], [float("nan")] * 2])

    def test_is_the_ratio_of_norms_over_rows_with_a_result(self) -> None:
        out = torch.tensor([[3.0, 4.5], [float("nan")] * 2])
        assert relative_error(out, self.expected) == pytest.approx(0.1)

    @pytest.mark.parametrize(
        "out", [[[3.0, float("nan")], [float("nan")] * 2], [[3.0, 4.0], [float("nan"), 0.0]]], ids=["missing", "stray"]
    )
    def test_is_infinite_if_a_row_is_missing_or_padding_was_written(self, out: list[list[float]]) -> None:
        assert relative_error(torch.tensor(out), self.expected) == float("inf")
