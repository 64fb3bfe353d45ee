"""The timing core: interleaved rounds, medians, and ratios taken round by round.

A round times one block of calls of every side, one after the other. A machine that slows down or
speeds up in the course of a run changes both halves of a round alike, so the ratio inside a round
stays right where two separate medians would drift apart.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_SECONDS = 0.005

Side = Callable[[], Any]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """Seconds a call, `[round]` for each side, and how many calls a side made in every round."""

    calls: Mapping[str, int]
    seconds: Mapping[str, np.ndarray]

    def median(self, label: str) -> float:
        """Median over the rounds of the seconds one call of a side takes."""
        return float(np.median(self.seconds[label]))

    def ratio(self, label: str, peer: str) -> float:
        """Median over the rounds of the time of `label` over that of `peer`."""
        return float(np.median(self.seconds[label] / self.seconds[peer]))

    def ratio_quartiles(self, label: str, peer: str) -> tuple[float, float]:
        """First and third quartile of the ratios of the rounds: how sure the median is."""
        low, high = np.quantile(self.seconds[label] / self.seconds[peer], [0.25, 0.75])
        return float(low), float(high)


def measure(sides: Mapping[str, Side], rounds: int, clock: Clock = time.process_time) -> Timing:
    """Time all sides in `rounds` interleaved rounds, after a warm-up of at least one block each.

    Every side fills its own block with calls: with a few calls only, a fast side would be timed
    with the processor's caches full of what the slow sides left there. The default clock counts the
    processor time of this process, so other work on the machine is left out. The order of the sides
    rotates from round to round.
    """
    labels = list(sides)
    seconds: dict[str, list[float]] = {label: [] for label in labels}
    with collector_paused():
        calls = {label: calls_per_block(side, clock) for label, side in sides.items()}
        for number in range(rounds):
            gc.collect()
            turn = number % len(labels)
            for label in labels[turn:] + labels[:turn]:
                block = time_block(sides[label], calls[label], clock)
                seconds[label].append(block / calls[label])
    return Timing(calls, {label: np.array(values) for label, values in seconds.items()})


def calls_per_block(side: Side, clock: Clock) -> int:
    """How many calls fill a block; finding out warms the side up."""
    calls = 1
    while time_block(side, calls, clock) < BLOCK_SECONDS:
        calls *= 2
    return calls


def time_block(side: Side, calls: int, clock: Clock) -> float:
    """Seconds that `calls` calls of a side take together."""
    repeat = range(calls)
    start = clock()
    for _ in repeat:
        side()
    return clock() - start


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector out of the blocks; what exists already is not looked at again."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
