from __future__ import annotations

from functools import cache

import pytest
from estimates import estimated

from attn_tune.arch import ARCHS
from attn_tune.kernels.lds import fits_lds
from attn_tune.problem import AttentionFamily
from attn_tune.search.grid import representative_sizes, size_grid
from attn_tune.search.predictions import Compilation, compilation, predicted_candidates, rule_configs
from attn_tune.search.propose import first_round, next_round, one_step, rule_compilations, space

TINY = AttentionFamily(4, 1, 64)
QWEN = AttentionFamily(16, 1, 256, kv_dtype="fp8_e4m3")
CASES = [(TINY, "gfx950"), (QWEN, "gfx1250"), (QWEN, "sm_90")]


@cache
def first(family: AttentionFamily, arch: str, limit: int = 6) -> tuple[Compilation, ...]:
    return tuple(first_round(family, ARCHS[arch], limit))


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_the_space_has_each_compilation_once_and_none_over_the_lds(family: AttentionFamily, arch: str) -> None:
    keys = space(family, ARCHS[arch])
    assert len(set(keys)) == len(keys) > 100
    assert {kernel for kernel, _ in keys} >= {"paged_2d", "paged_3d"}
    assert not any("NUM_SEGMENTS" in dict(items) for _, items in keys)
    assert all(fits_lds(dict(items), family, ARCHS[arch]) for _, items in keys)


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_the_first_round_has_what_every_rule_chooses_anywhere(family: AttentionFamily, arch: str) -> None:
    chosen = {key for problem in size_grid(family) for key, _ in rule_configs(problem, ARCHS[arch]).values()}
    assert chosen == set(rule_compilations(family, ARCHS[arch]))
    assert chosen <= set(first(family, arch))


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_the_first_round_adds_so_many_of_the_space_and_a_larger_one_begins_the_same(
    family: AttentionFamily, arch: str
) -> None:
    rules = len(rule_compilations(family, ARCHS[arch]))
    keys = first(family, arch)
    assert len(set(keys)) == len(keys) == rules + 6
    assert set(keys[rules:]) <= set(space(family, ARCHS[arch]))
    assert tuple(first_round(family, ARCHS[arch], 2)) == keys[: rules + 2]


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_the_next_round_tries_nothing_again(family: AttentionFamily, arch: str) -> None:
    spec = ARCHS[arch]
    compiled = estimated(first(family, arch), family, spec)
    tried = {*compiled, *next_round(family, spec, compiled, compiled, 3)}  # the last three failed to compile
    proposed = next_round(family, spec, compiled, tried, 10)
    assert len(set(proposed)) == len(proposed) == 10
    assert not tried & set(proposed)
    assert set(proposed) <= set(space(family, spec))
    assert next_round(family, spec, compiled, tried, 4) == proposed[:4]


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_the_other_route_of_the_best_comes_first_then_its_neighbours(family: AttentionFamily, arch: str) -> None:
    spec = ARCHS[arch]
    alone = next(key for key in space(family, spec) if key[0] == "paged_2d")
    proposed = next_round(family, spec, estimated([alone], family, spec), [alone], 1000)
    siblings = [key for key in proposed if key[0] != alone[0]]
    assert siblings
    assert proposed[: len(siblings)] == siblings
    for _, items in siblings:
        assert all(dict(alone[1]).get(name, value) == value for name, value in items)
    assert len(proposed) > len(siblings)
    assert all(one_step(alone, key) for key in proposed[len(siblings) :])


@pytest.mark.parametrize(("family", "arch"), CASES)
def test_the_next_round_does_not_depend_on_the_order_in_which_compilations_ended(
    family: AttentionFamily, arch: str
) -> None:
    spec = ARCHS[arch]
    compiled = estimated(space(family, spec)[::3], family, spec)
    ties = 0
    for problem in representative_sizes(family):
        times = sorted(item.us for item in predicted_candidates(problem, compiled, spec))
        ties += times[0] == times[1]
    assert ties  # else the order would not matter
    backwards = dict(reversed(compiled.items()))
    assert next_round(family, spec, backwards, backwards, 10) == next_round(family, spec, compiled, compiled, 10)


def test_without_anything_compiled_or_supported_there_is_nothing_to_propose() -> None:
    spec = ARCHS["gfx950"]
    assert next_round(TINY, spec, {}, (), 10) == []
    assert first_round(AttentionFamily(4, 1, 64, q_dtype="fp16"), spec, 10) == []


BASE = {"BLOCK_M": 32, "TILE_SIZE": 64, "num_warps": 2, "num_stages": 2, "waves_per_eu": 0}


@pytest.mark.parametrize(
    ("kernel", "changes", "near"),
    [
        ("paged_2d", {"BLOCK_M": 64}, True),
        ("paged_2d", {"TILE_SIZE": 32}, True),
        ("paged_2d", {"waves_per_eu": 2}, True),
        ("paged_2d", {"QUERY_TERMS": 2}, True),
        ("paged_2d", {}, False),
        ("paged_2d", {"BLOCK_M": 128}, False),
        ("paged_2d", {"BLOCK_M": 64, "num_warps": 4}, False),
        ("paged_3d", {"BLOCK_M": 64}, False),
    ],
)
def test_a_step_changes_one_parameter_by_a_factor_of_two(kernel: str, changes: dict[str, int], near: bool) -> None:
    first, second = compilation("paged_2d", BASE), compilation(kernel, BASE | changes)
    assert one_step(first, second) == one_step(second, first) == near
