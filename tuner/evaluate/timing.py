"""Times of a call on the GPU: graph replay, so that the host never counts, over a cache that is never warm.

The policy, in one place: a graph holds one call for each set of inputs; the sets use different pages of one pool that
is larger than the last level of cache, so that each call finds its keys in memory, as in a server. A sample is the time
of one replay by device events, divided by the calls. Works through torch on NVIDIA and on ROCm alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

POLICY = "graph-replay-cold-kv-1"
"""Recorded with every measured trial; times of different policies are never compared."""

SCREEN_SECONDS = 2e-3  # of replays, at least; three replays at least
RACE_ROUNDS = 9  # interleaved replays of each finalist
_RACE_SECONDS = 1e-3  # one round of a finalist lasts about this long, so that short calls get many replays


@dataclass(frozen=True)
class Sample:
    """Median microseconds of a call, and how far the samples spread: their median absolute deviation, relative."""

    us: float
    spread: float
    samples: int


def summarise(times: Sequence[float]) -> Sample:
    """Median and relative spread of some times in microseconds."""
    middle = statistics.median(times)
    deviation = statistics.median(abs(value - middle) for value in times)
    # 1.4826 makes the median absolute deviation a normal distribution's standard deviation; the median of n samples
    # varies by about 1.25 / sqrt(n) of that.
    spread = 1.4826 * deviation / middle if middle > 0 else 0.0
    return Sample(middle, spread * 1.25 / len(times) ** 0.5, len(times))


class Replay:
    """The calls of one candidate over all input sets, ready to be timed again and again.

    On a GPU the calls are captured into a graph. Without one, only tests get here, and the calls simply run.
    """

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        self._calls = calls
        self._graph: torch.cuda.CUDAGraph | None = None
        if torch.cuda.is_available():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):
                for call in calls:
                    call()

    def run(self, times: int = 1) -> float:
        """Microseconds of one call, over ``times`` replays."""
        if self._graph is None:
            begin = time.perf_counter()
            for _ in range(times):
                for call in self._calls:
                    call()
            return (time.perf_counter() - begin) * 1e6 / (times * len(self._calls))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / (times * len(self._calls))


def screen(replay: Replay) -> Sample:
    """A quick time: a warm-up, then a few replays."""
    first = replay.run()
    per_replay = first * len(replay._calls) * 1e-6
    count = min(max(3, round(SCREEN_SECONDS / max(per_replay, 1e-6))), 20)
    return summarise([replay.run() for _ in range(count)])


def race(replays: Sequence[Replay]) -> list[Sample]:
    """Careful times of finalists: all in turn, round after round, so that a drift of the clock hits all alike."""
    repeats = []
    for replay in replays:
        per_replay = replay.run() * len(replay._calls) * 1e-6
        repeats.append(min(max(1, round(_RACE_SECONDS / max(per_replay, 1e-6))), 50))
    times: list[list[float]] = [[] for _ in replays]
    for number in range(RACE_ROUNDS):
        order = range(len(replays)) if number % 2 == 0 else reversed(range(len(replays)))
        for index in order:
            times[index].append(replays[index].run(repeats[index]))
    return [summarise(values) for values in times]
