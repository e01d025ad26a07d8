from __future__ import annotations

from attn_tune.problem import AttentionFamily
from attn_tune.store.frame import trials_frame
from attn_tune.store.trial import Trial

FAMILY = AttentionFamily(16, 1, 128)


def trial(**fields: object) -> Trial:
    values: dict[str, object] = {
        "family": FAMILY,
        "sizes": (4, 1, 1024),
        "kernel": "paged_3d",
        "config": {"BLOCK_M": 16, "NUM_SEGMENTS": 8},
        "arch": "sm_90",
        "compute_units": 132,
        "status": "ok",
        "evidence": "measured",
        "us": 12.5,
        "environment": {"policy": "race"},
    }
    return Trial(**(values | fields))  # type: ignore[arg-type]


def test_a_trial_is_a_row_with_a_column_for_each_parameter() -> None:
    frame = trials_frame([trial(), trial(sizes=None, us=None, config={"BLOCK_M": 32, "QUERY_TERMS": 2})])
    assert frame["BLOCK_M"].tolist() == [16, 32]
    assert frame["NUM_SEGMENTS"].isna().tolist() == [False, True]
    assert frame["max_seqlen_k"].isna().tolist() == [False, True]
    assert frame["policy"].tolist() == ["race", "race"]
    assert frame["family"].unique().tolist() == [str(FAMILY)]


def test_the_fastest_of_each_size_can_be_asked_for() -> None:
    frame = trials_frame([trial(us=us, sizes=(4, 1, keys)) for keys in (1024, 4096) for us in (9.0, 7.0, 8.0)])
    assert frame.groupby("max_seqlen_k")["us"].min().tolist() == [7.0, 7.0]


def test_no_trials_make_an_empty_table() -> None:
    assert trials_frame([]).empty
