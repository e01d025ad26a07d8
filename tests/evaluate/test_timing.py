"""Times of calls, and what is noted of the GPU beside them."""

from __future__ import annotations

import statistics

import pytest
import torch

from attn_tune.evaluate.conditions import describe, gpu_conditions
from attn_tune.evaluate.timing import RACE_ROUNDS, Replay, race, screen, summarise

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a graph would record the calls once")


def test_summary_is_median_spread_and_count() -> None:
    sample = summarise([12.0, 10.0, 11.0])
    assert (sample.us, sample.samples) == (11.0, 3)
    assert sample.spread == pytest.approx(1.4826 * (1.0 / 11.0) * 1.25 / 3**0.5)


@pytest.mark.parametrize("times", [[5.0], [5.0, 5.0, 5.0], [5.0] * 10])
def test_equal_times_have_no_spread(times: list[float]) -> None:
    assert summarise(times) == summarise([5.0] * len(times))
    assert summarise(times).spread == 0.0


def test_an_outlier_changes_neither_median_nor_spread_much() -> None:
    calm = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98]
    sample = summarise([*calm, 1000.0])
    assert sample.us == pytest.approx(statistics.median(calm), rel=0.01)
    assert sample.spread < 0.01


def test_spread_shrinks_with_the_number_of_samples() -> None:
    few, many = summarise([9.0, 10.0, 11.0] * 3), summarise([9.0, 10.0, 11.0] * 12)
    assert many.spread == pytest.approx(few.spread / 2)


def test_spread_has_no_unit() -> None:
    times = [9.0, 10.0, 11.5, 10.5]
    assert summarise([time * 7 for time in times]).spread == pytest.approx(summarise(times).spread)


def test_a_zero_time_is_summarised_as_it_is() -> None:
    """Refusing it is the caller's part, which knows the status for it."""
    assert summarise([0.0, 0.0, 0.0]).us == 0.0


@without_gpu
def test_a_replay_makes_every_call_in_turn() -> None:
    log: list[str] = []
    replay = Replay([lambda: log.append("a"), lambda: log.append("b")])
    assert replay.run(2) > 0
    assert log == ["a", "b", "a", "b"]


@without_gpu
def test_screening_samples_a_few_replays() -> None:
    log: list[str] = []
    sample = screen(Replay([lambda: log.append("a")]))
    assert 3 <= sample.samples <= 20
    assert len(log) == sample.samples + 1  # and a warm-up


@without_gpu
def test_finalists_run_in_turn_in_alternating_order() -> None:
    log: list[str] = []

    def rounds() -> list[str]:
        """The log without the repeats inside one round."""
        return [name for index, name in enumerate(log) if index == 0 or log[index - 1] != name]

    samples = race([Replay([lambda name=name: log.append(name)]) for name in "abc"])  # type: ignore[misc]
    assert [sample.samples for sample in samples] == [RACE_ROUNDS] * 3
    # After the warm-up abc: abc cba abc ... where two equal neighbours are one.
    expected = "abc"
    for number in range(RACE_ROUNDS):
        turn = "abc" if number % 2 == 0 else "cba"
        expected += turn[1:] if expected[-1] == turn[0] else turn
    assert "".join(rounds()) == expected


def test_conditions_are_described_as_two_readings() -> None:
    before = {"clock_mhz": 1980, "temperature_c": 40, "other_processes": 0}
    after = {"clock_mhz": 1965, "temperature_c": 43, "other_processes": 0}
    assert describe(before, after) == {"clock_mhz": "1980-1965", "temperature_c": "40-43"}


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (2, 2)])
def test_another_process_on_the_gpu_is_noted(before: int, after: int) -> None:
    assert describe({"other_processes": before}, {"other_processes": after}) == {"shared": "yes"}


def test_what_the_driver_does_not_tell_is_left_out() -> None:
    assert describe({}, {}) == {}
    assert describe({"clock_mhz": 1980}, {}) == {}


@without_gpu
def test_without_a_gpu_there_are_no_conditions() -> None:
    assert gpu_conditions() == {}
