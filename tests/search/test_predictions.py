from __future__ import annotations

import math

import pytest
from estimates import estimated

from attn_tune.arch import ARCHS
from attn_tune.baselines import rule_choices
from attn_tune.kernels import get_kernel
from attn_tune.problem import AttentionFamily, AttentionProblem
from attn_tune.search.grid import representative_sizes, size_grid
from attn_tune.search.predictions import (
    compilation,
    estimated_us,
    predicted_candidates,
    rule_configs,
    supported_kernels,
    with_segments,
)

TINY = AttentionFamily(4, 1, 64)
QWEN = AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3")
CASES = [(TINY, "gfx950"), (QWEN, "gfx950"), (QWEN, "gfx1250"), (TINY, "sm_90")]


def test_one_compilation_serves_every_segment_count() -> None:
    config = {"BLOCK_M": 32, "TILE_SIZE": 64, "num_warps": 2, "num_stages": 2, "waves_per_eu": 0}
    key = compilation("paged_3d", with_segments(config, 8))
    assert key == compilation("paged_3d", config) == ("paged_3d", tuple(config.items()))
    assert list(with_segments(config, 8)) == ["BLOCK_M", "TILE_SIZE", "NUM_SEGMENTS", *list(config)[2:]]


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_rule_configs_are_the_rules_answers_as_the_kernels_run_them(family: AttentionFamily, arch: str) -> None:
    spec = ARCHS[arch]
    for problem in representative_sizes(family):
        choices = rule_choices(problem, spec)
        found = rule_configs(problem, spec)
        assert found.keys() == choices.keys() != set()
        for name, (key, segments) in found.items():
            assert key[0] == choices[name].route
            assert choices[name].config.items() <= with_segments(dict(key[1]), segments).items()


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_every_rule_is_a_candidate_with_its_own_segment_count(family: AttentionFamily, arch: str) -> None:
    spec = ARCHS[arch]
    for problem in size_grid(family)[::7]:
        rules = rule_configs(problem, spec)
        candidates = list(
            predicted_candidates(problem, estimated({key for key, _ in rules.values()}, family, spec), spec)
        )
        for name, (key, segments) in rules.items():
            (marked,) = (item for item in candidates if name in item.rules)
            assert (marked.kernel, dict(marked.config)) == (key[0], with_segments(dict(key[1]), segments))
        assert {name for item in candidates for name in item.rules} == rules.keys()
        assert len({item.key for item in candidates}) == len(candidates)
        assert all(item.evidence == "modelled" and 0 < item.us < math.inf for item in candidates)


def test_a_rule_may_split_more_than_the_kernel_would() -> None:
    spec, problem = ARCHS["gfx950"], AttentionProblem(AttentionFamily(4, 1, 64, sliding_window=128), 1, 1, 8192)
    key, segments = rule_configs(problem, spec)["vllm"]
    offered = set(get_kernel(key[0]).segments(problem, dict(key[1]), spec, 8))
    assert segments > max(offered)
    candidates = list(predicted_candidates(problem, estimated([key], problem.family, spec), spec))
    assert {item.config["NUM_SEGMENTS"]: "vllm" in item.rules for item in candidates} == {
        count: count == segments for count in offered | {segments}
    }


def test_only_what_was_compiled_is_a_candidate_and_the_split_route_has_several_segment_counts() -> None:
    spec, problem = ARCHS["gfx950"], AttentionProblem(TINY, 4, 1, 16384)
    config = {"BLOCK_M": 16, "TILE_SIZE": 64, "num_warps": 2, "num_stages": 2, "waves_per_eu": 0}
    keys = [compilation(name, config) for name in ("paged_2d", "paged_3d")]
    candidates = list(predicted_candidates(problem, estimated(keys, TINY, spec), spec))
    counts = {name: [c.config["NUM_SEGMENTS"] for c in candidates if c.kernel == name] for name, _ in keys}
    assert counts["paged_2d"] == [1]
    assert len(counts["paged_3d"]) > 3
    assert counts["paged_3d"] == sorted(set(counts["paged_3d"]))
    assert {compilation(item.kernel, item.config) for item in candidates} == set(keys)
    assert list(predicted_candidates(problem, {}, spec)) == []


def test_splitting_pays_at_long_contexts_of_small_batches_only() -> None:
    spec = ARCHS["gfx950"]
    config = {"BLOCK_M": 16, "TILE_SIZE": 64, "num_warps": 2, "num_stages": 2, "waves_per_eu": 0}
    one, split = (compilation(name, config) for name in ("paged_2d", "paged_3d"))
    for problem, faster in ((AttentionProblem(TINY, 1, 1, 65536), split), (AttentionProblem(TINY, 256, 1, 256), one)):
        assert min((one, split), key=lambda key: estimated_us(problem, key, spec)) == faster


@pytest.mark.parametrize(
    ("family", "routes"),
    [(TINY, ["paged_2d", "paged_3d"]), (AttentionFamily(4, 1, 64, q_dtype="fp16"), [])],
    ids=["bf16", "fp16 query on bf16 keys"],
)
def test_routes_that_do_not_compute_a_family_are_left_out(family: AttentionFamily, routes: list[str]) -> None:
    found = supported_kernels(family, ARCHS["gfx950"])
    assert [name for name in found if name in ("paged_2d", "paged_3d")] == routes
    assert bool(rule_configs(AttentionProblem(family, 1, 1, 4096), ARCHS["gfx950"])) == bool(routes)
