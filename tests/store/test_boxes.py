from __future__ import annotations

import itertools
import math
import random

import pytest

from attn_tune.store.boxes import intervals, merge_boxes
from attn_tune.store.table import Box


@pytest.mark.parametrize(
    ("values", "below", "expected"),
    [
        ([7], 0.5, [(1, math.inf)]),
        ([8, 16], 0.5, [(1, 11), (12, math.inf)]),
        ([1, 2, 3], 0.5, [(1, 1), (2, 2), (3, math.inf)]),
        ([512, 1024, 131072], 0.5, [(1, 724), (725, 11585), (11586, math.inf)]),
        ([1, 2, 4, 8, 16], 0.25, [(1, 1), (2, 2), (3, 4), (5, 9), (10, math.inf)]),
        ([1, 2, 4, 2048], 0.0, [(1, 1), (2, 2), (3, 4), (5, math.inf)]),
        ([4], 0.0, [(1, math.inf)]),
        ([1000, 8000, 70000], 0.0, [(1, 1000), (1001, 8000), (8001, math.inf)]),
    ],
)
def test_neighbours_meet_where_they_are_told_to(
    values: list[int], below: float, expected: list[tuple[int, float]]
) -> None:
    assert intervals(values, below) == expected


@pytest.mark.parametrize("seed", range(20))
def test_each_size_belongs_to_the_value_nearest_in_log_space(seed: int) -> None:
    values = sorted(random.Random(seed).sample(range(1, 200), 6))
    for value, (low, high) in zip(values, intervals(values, 0.5), strict=True):
        for size in range(low, int(min(high, 300)) + 1):
            ratio = max(size / value, value / size)
            assert all(ratio <= max(size / other, other / size) * (1 + 1e-12) for other in values)


@pytest.mark.parametrize("seed", range(30))
def test_merging_keeps_what_every_size_is_answered(seed: int) -> None:
    random_ = random.Random(seed)
    parts = intervals([1, 2, 3, 4], 0.5)
    rows = [(Box(q, s, k), random_.randrange(2)) for q, s, k in itertools.product(parts, repeat=3)]
    random_.shuffle(rows)
    merged = merge_boxes(rows)
    assert len(merged) < len(rows)
    assert [box for box, _ in merged] == sorted(box for box, _ in merged)
    points = range(1, 7)
    for sizes in itertools.product(points, points, points):
        before = [value for box, value in rows if box.contains(sizes)]
        assert [value for box, value in merged if box.contains(sizes)] == before


def test_equal_boxes_become_one() -> None:
    rows = [(Box(q, s, k), "same") for q, s, k in itertools.product(intervals([1, 8, 64], 0.5), repeat=3)]
    assert merge_boxes(rows) == [(Box((1, math.inf), (1, math.inf), (1, math.inf)), "same")]


def test_boxes_that_do_not_touch_stay_apart() -> None:
    rows = [(Box((1, 1), (1, 1), (1, 4)), 0), (Box((1, 1), (1, 1), (6, 9)), 0)]
    assert merge_boxes(rows) == rows
