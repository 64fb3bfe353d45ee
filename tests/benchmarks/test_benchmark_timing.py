"""The timing core on a clock that the sides move themselves."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.timing import BLOCK_SECONDS, Timing, measure


class Machine:
    """A clock, and sides that take a known time on it; `slowness` changes as a machine's does."""

    def __init__(self, drift: float = 1.0) -> None:
        self.now = 0.0
        self.slowness = 1.0
        self.drift = drift
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def side(self, label: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.ran.append(label)
            self.now += seconds * self.slowness
            self.slowness *= self.drift

        return run


def test_a_call_takes_what_the_clock_says() -> None:
    machine = Machine()
    sides = {"a": machine.side("a", 0.25), "b": machine.side("b", 0.5)}
    timing = measure(sides, 3, machine)
    assert timing.calls == {"a": 1, "b": 1}
    assert timing.seconds["a"].tolist() == [0.25] * 3
    assert timing.median("b") == 0.5
    assert timing.ratio("a", "b") == 0.5
    assert timing.ratio_quartiles("a", "b") == (0.5, 0.5)


def test_short_calls_are_timed_in_equal_blocks() -> None:
    machine = Machine()
    quick = BLOCK_SECONDS / 7
    sides = {"quick": machine.side("quick", quick), "slow": machine.side("slow", quick * 4)}
    timing = measure(sides, 2, machine)
    assert timing.calls == {"quick": 8, "slow": 2}
    first, second = ["quick"] * 8 + ["slow"] * 2, ["slow"] * 2 + ["quick"] * 8
    assert machine.ran[-20:] == first + second
    assert timing.median("quick") == pytest.approx(quick)


def test_drift_of_the_machine_cancels() -> None:
    machine = Machine(drift=1.01)
    sides = {"a": machine.side("a", 1.0), "b": machine.side("b", 2.0)}
    timing = measure(sides, 100, machine)
    assert timing.median("a") > 1.5  # the machine became slower by far
    assert timing.ratio("a", "b") == pytest.approx(0.5, rel=0.011)  # one step of drift


def test_the_order_of_the_sides_rotates() -> None:
    machine = Machine()
    sides = {label: machine.side(label, 1.0) for label in "abc"}
    measure(sides, 3, machine)
    assert "".join(machine.ran) == "abc" + "abc" + "bca" + "cab"  # the first is the warm-up


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    timing = Timing({}, {"a": np.array([1.0, 4.0, 6.0]), "b": np.array([2.0, 8.0, 2.0])})
    assert timing.ratio("a", "b") == 0.5  # of 0.5, 0.5 and 3; that of the medians is 2
    assert timing.ratio_quartiles("a", "b") == (0.5, 1.75)


def test_the_collector_is_off_in_a_round_and_on_again_after_an_error() -> None:
    seen: list[bool] = []

    def fail() -> None:
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure({"a": fail}, 1)
    assert seen == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
