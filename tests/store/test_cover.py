from __future__ import annotations

import random
from itertools import combinations

import pytest

from attn_tune.store.cover import fewest


def identity(key: str) -> str:
    return key


def test_one_key_that_serves_all_beats_the_best_of_each() -> None:
    options = [{"a": 1.0, "all": 1.02}, {"b": 1.0, "all": 1.02}, {"c": 1.0, "all": 1.02}]
    assert fewest(options, identity) == ["all"]


def test_ties_go_to_the_cheaper_then_the_lower_rank() -> None:
    assert fewest([{"b": 1.0, "a": 1.01}], identity) == ["b"]
    assert fewest([{"b": 1.0, "a": 1.0}], identity) == ["a"]


def test_a_choice_made_redundant_by_later_ones_is_dropped() -> None:
    # Greedy takes "wide" for four cells first, then needs "left" and "right", which serve its cells as well.
    sets = {"wide": {1, 2, 3, 4}, "left": {0, 1, 2}, "right": {3, 4, 5}}
    options = [{key: 1.0 for key, cells in sets.items() if cell in cells} for cell in range(6)]
    assert sorted(fewest(options, identity)) == ["left", "right"]


def test_an_option_without_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="without keys"):
        fewest([{"a": 1.0}, {}], identity)


@pytest.mark.parametrize("seed", range(30))
def test_every_option_is_served_by_nearly_the_fewest(seed: int) -> None:
    random_ = random.Random(seed)
    options = [{key: random_.random() for key in random_.sample("abcdefgh", 3)} for _ in range(12)]
    chosen = fewest(options, identity)
    assert all(option.keys() & set(chosen) for option in options)
    size = next(
        n for n in range(1, 9) if any(all(o.keys() & set(c) for o in options) for c in combinations("abcdefgh", n))
    )
    assert size <= len(chosen) <= size + 1
    shuffled = [dict(random_.sample(list(option.items()), 3)) for option in options]
    assert fewest(shuffled, identity) == chosen
