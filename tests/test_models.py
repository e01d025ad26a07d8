"""The shipped models and the reading of model files."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_tune.models import all_families, find_model, load_models, models_of
from attn_tune.problem import AttentionFamily

MODEL = """
- name: toy
  source: a test
  tp: [1, 2]
  attention:
    - num_attention_heads: 8
      num_key_value_heads: 1
      head_dim: 64
      caches: [{kv_dtype: bf16, page_sizes: [16]}]
"""


def test_all_model_entries_lead_to_families_and_say_where_they_come_from() -> None:
    models = load_models()
    assert len(models) == 16
    for name, model in models.items():
        assert model.name == name
        assert model.source
        assert model.families() == list(dict.fromkeys(family for tp in model.tp for family in model.families(tp)))


@pytest.mark.parametrize(
    ("name", "tp", "heads"),
    [
        ("Qwen3.5-397B-A17B", 1, (32, 2, 256)),
        ("Qwen3.5-397B-A17B", 2, (16, 1, 256)),
        ("Qwen3.5-397B-A17B", 4, (8, 1, 256)),  # the KV head is replicated
        ("MiniMax-M3", 8, (8, 1, 128)),
        ("Llama-3-405B", 8, (16, 1, 128)),
        ("Llama-4-Maverick", 8, (5, 1, 128)),
        ("GLM-4.x", 8, (12, 1, 128)),
    ],
)
def test_tensor_parallelism_divides_heads(name: str, tp: int, heads: tuple[int, int, int]) -> None:
    for family in find_model(name).families(tp):
        assert (family.num_query_heads, family.num_kv_heads, family.head_size) == heads


def test_deployments_of_gpt_oss() -> None:
    families = find_model("gpt-oss-120b").families()
    assert families == find_model("gpt-oss-20b").families(1)
    assert {(f.sliding_window, f.kv_dtype, f.page_size) for f in families} == {
        (window, kv_dtype, page) for window in (0, 128) for kv_dtype in ("bf16", "fp8_e4m3") for page in (16, 64, 128)
    }
    assert all(family.sinks for family in families)


def test_deployments_of_gemma() -> None:
    assert [str(family) for family in find_model("Gemma-4-31B").families()] == [
        "32/4/512 page 32 q bf16 kv bf16",
        "32/4/512 page 64 q bf16 kv bf16",
        "32/4/512 page 32 q bf16 kv fp8_e4m3",
        "32/16/256 page 32 q bf16 kv bf16 window 1024",
        "32/16/256 page 64 q bf16 kv bf16 window 1024",
    ]


def test_minimax_m3_caches_fp8_with_a_scale_per_token() -> None:
    scales = {family.kv_dtype: family.kv_scales for family in find_model("MiniMax-M3").families()}
    assert scales == {"bf16": "none", "fp8_e4m3": "per_token_head"}


def test_all_families_are_distinct_and_in_a_fixed_order() -> None:
    families = all_families()
    assert len(families) == len(set(families))
    assert families[0] == AttentionFamily(32, 2, 256, kv_dtype="fp8_e4m3")
    assert set(families) == {family for model in load_models().values() for family in model.families()}


def test_models_that_share_a_family() -> None:
    assert models_of(AttentionFamily(32, 8, 128)) == ["Llama-3-8B TP1", "Ministral TP1"]
    assert models_of(AttentionFamily(8, 1, 128, page_size=64)) == ["Llama-3-70B TP8"]
    assert models_of(AttentionFamily(7, 7, 120)) == []


def test_returned_collections_are_copies() -> None:
    load_models().clear()
    all_families().clear()
    models_of(AttentionFamily(32, 8, 128)).clear()
    assert load_models()
    assert all_families()
    assert models_of(AttentionFamily(32, 8, 128))


def test_models_are_found_in_any_case() -> None:
    assert find_model("llama-3-70b").name == "Llama-3-70B"


def test_unknown_model_lists_near_names() -> None:
    with pytest.raises(ValueError, match=r"'llama-3-7b' is unknown; nearest: .*Llama-3-70B"):
        find_model("llama-3-7b")
    with pytest.raises(ValueError, match=r"nearest: Qwen3.5-397B-A17B, .*Ministral"):
        find_model("zzz")


@pytest.mark.parametrize("tp", [0, 3])
def test_tp_that_does_not_divide_the_heads(tp: int) -> None:
    with pytest.raises(ValueError, match=f"model Llama-3-8B: tp {tp} does not divide 32 query heads on 8 KV heads"):
        find_model("Llama-3-8B").families(tp)


def test_model_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(MODEL)
    assert load_models(path)["toy"].families(2) == [AttentionFamily(4, 1, 64)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: a test", "sauce: a test", "model toy: unknown field 'sauce'"),
        ("head_dim: 64", "head_size: 64", "model toy: attention: unknown field 'head_size'"),
        ("kv_dtype: bf16", "dtype: bf16", "model toy: caches: unknown field 'dtype'"),
        ("  tp: [1, 2]\n", "", "model toy: field 'tp' is missing"),
        ("      head_dim: 64\n", "", "model toy: attention: field 'head_dim' is missing"),
        ("page_sizes: [16]", "page_sizes: 16", "model toy: page_sizes: must be a list"),
        ("page_sizes: [16]", "page_sizes: [on]", "model toy: page_sizes: must be a positive integer, not True"),
        ("head_dim: 64", "head_dim: 64.0", "model toy: head_dim: must be a positive integer"),
        ("head_dim: 64", "head_dim: 4", "model toy: head_size must be an integer from 8 to 1024"),
        ("kv_dtype: bf16", "kv_dtype: fp4", "model toy: kv_dtype must be one of"),
        ("tp: [1, 2]", "tp: [3]", "model toy: tp 3 does not divide 8 query heads"),
        ("tp: [1, 2]", "tp: []", "model toy: tp: must be a list that is not empty"),
        ("source: a test", "source: 7", "model toy: source must be text"),
        ("- name: toy\n  source", "- source", "model number 1: field 'name' is missing"),
        (MODEL, "", "must be a list that is not empty"),
        (MODEL, MODEL + MODEL, "model toy is listed twice"),
        (MODEL, "- toy", "model number 1: must be a mapping"),
        ("tp: [1, 2]", "tp: [1, 2", "not a YAML file"),
    ],
)
def test_bad_model_file_is_refused_by_file_model_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "models.yaml"
    assert old in MODEL
    path.write_text(MODEL.replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as caught:
        load_models(path)
    assert str(path) in str(caught.value)
