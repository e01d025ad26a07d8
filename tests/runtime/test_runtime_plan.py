"""How a family is answered on a device: distance, devices of another size, and rows that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import CONFIG_2D, CONFIG_3D, FAMILY, family_rows, write_sample

from attn_tune.models import all_families
from attn_tune.problem import AttentionFamily
from attn_tune.runtime.distance import family_distance
from attn_tune.runtime.plan import Plan, RulePlan, make_plan

LLAMA = AttentionFamily(32, 8, 128)


@pytest.mark.parametrize(
    ("changes", "distance"),
    [
        ({}, 0),
        ({"num_query_heads": 64, "num_kv_heads": 16}, 0.1),
        ({"num_query_heads": 16}, 2),
        ({"head_size": 256, "value_head_size": 256}, 8),
        ({"value_head_size": 64}, 4),
        ({"page_size": 64}, 1),
        ({"sinks": True, "softcap": True}, 2),
        ({"sliding_window": 128}, 1),
        ({"q_dtype": "fp16", "kv_dtype": "fp16"}, 2),
        ({"kv_dtype": "fp8"}, None),
        ({"q_dtype": "fp8"}, None),
        ({"kv_layout": "shuffled"}, None),
        ({"num_query_heads": 256}, None),
    ],
)
def test_distance(changes: dict[str, Any], distance: float | None) -> None:
    other = AttentionFamily(**vars(LLAMA) | {"kv_scales": ""} | changes)
    assert family_distance(LLAMA, other) == family_distance(other, LLAMA) == distance


def test_distance_is_zero_only_to_itself() -> None:
    families = all_families()
    for first in families:
        assert [other for other in families if family_distance(first, other) == 0] == [first]


def test_windows_differ_by_their_ratio() -> None:
    assert family_distance(replace(LLAMA, sliding_window=128), replace(LLAMA, sliding_window=512)) == 1


@pytest.mark.parametrize(("compute_units", "last"), [(256, 64), (128, 32), (32, 8), (512, 129)])
def test_fewer_units_count_like_more_sequences(user_tables: Path, compute_units: int, last: int) -> None:
    write_sample(user_tables)
    plan = make_plan("gfx950", FAMILY, compute_units)
    assert [plan.find(num_seqs, 1, 4096).route for num_seqs in (last, last + 1)] == ["paged_3d", "paged_2d"]
    answer = plan.find(1, 1, 4096)
    assert answer.source == ("exact" if compute_units == 256 else "nearest")
    assert (f"on {compute_units} units" in answer.explain()) == (compute_units != 256)


@pytest.mark.filterwarnings("ignore:no tuned config")
@pytest.mark.parametrize(
    ("config", "changes", "reason"),
    [
        ({"BLOCK_M": 16}, {"num_query_heads": 17}, None),  # another BLOCK_M is no neighbour at all
        ({"TILE_SIZE": 512, "num_stages": 3}, {"page_size": 32}, "its LDS is over the limit of gfx950"),
        ({"TILE_SIZE": 16}, {"q_dtype": "fp8_e4m3"}, None),
        ({"QUERY_TERMS": 2}, {"kv_dtype": "int8"}, "QUERY_TERMS is for kv_dtype fp8_e4m3"),
    ],
)
def test_a_neighbours_row_that_cannot_run_gives_way_to_the_rule(
    user_tables: Path, config: dict[str, int], changes: dict[str, Any], reason: str | None
) -> None:
    write_sample(user_tables, family_rows(split=CONFIG_3D | config, small=CONFIG_2D | config))
    plan = make_plan("gfx950", AttentionFamily(**vars(FAMILY) | changes))
    if reason is None:
        assert isinstance(plan, RulePlan)
        return
    assert isinstance(plan, Plan)
    with pytest.warns(UserWarning, match=reason):
        answer = plan.find(20, 4, 70000)
    assert answer.source == "rule"
    assert reason in answer.explain()


def test_rules_look_at_exact_sizes_and_stay_bounded(user_tables: Path) -> None:
    with pytest.warns(UserWarning, match="by the default rule"):
        plan = make_plan("gfx950", FAMILY)
    assert isinstance(plan, RulePlan)
    assert plan.find(1, 1, 512).route == "paged_2d"
    assert plan.find(1, 1, 513).route == "paged_3d"
    for max_seqlen_k in range(1, 10000):
        plan.find(1, 1, max_seqlen_k)
    assert len(plan.answers) <= 4096
    assert plan.find(1, 1, 513) == plan.find(1, 1, 513)


def test_an_arch_without_a_record_is_answered_from_its_table(user_tables: Path) -> None:
    path = write_sample(user_tables)
    text = path.read_text().replace("name: gfx950", "name: gfx1201").replace("wave_size: 64", "wave_size: 32")
    (user_tables / "gfx1201.yaml").write_text(text)
    answer = make_plan("gfx1201", FAMILY).find(20, 4, 70000)
    assert (answer.source, answer.config) == ("exact", CONFIG_3D)
