"""A workload: the same work on several sides, checked for equal outputs before it is timed."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.timing import Clock, Side, Timing, measure


@dataclass(frozen=True)
class Workload:
    """One row of a table. The first side is the subject, the second the peer it is held against.

    Further sides are timed and shown only. `size` places the workload in a series (a depth, a
    number of ops) whose growth is reported; `expected` is a value found without any of the sides.
    Work that waits for another process is timed by a `clock` that does not stop meanwhile.
    """

    family: str
    name: str
    sides: Mapping[str, Side]
    bound: float | None = None
    expected: Any = None
    size: int | None = None
    clock: Clock = time.process_time

    @property
    def title(self) -> str:
        """The name `--only` looks in."""
        return f"{self.family}: {self.name}"


@dataclass(frozen=True)
class Result:
    """What came of a workload: a timing, or the error that kept it from being timed."""

    workload: Workload
    timing: Timing | None = None
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        """Time of the subject over that of the peer."""
        if self.timing is None:
            return None
        subject, peer, *_ = self.workload.sides
        return self.timing.ratio(subject, peer)

    @property
    def ratio_quartiles(self) -> tuple[float, float] | None:
        """Quartiles of the ratio over the rounds."""
        if self.timing is None:
            return None
        subject, peer, *_ = self.workload.sides
        return self.timing.ratio_quartiles(subject, peer)

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is within the bound; None where there is no bound or no ratio."""
        if self.workload.bound is None or self.ratio is None:
            return None
        return self.ratio <= self.workload.bound


def run(workload: Workload, rounds: int) -> Result:
    """Compare the outputs of all sides, then time them; an error becomes part of the result."""
    try:
        check(workload)
        return Result(workload, measure(workload.sides, rounds, workload.clock))
    except Exception as error:  # one broken workload must not hide the others
        return Result(workload, error=f"{type(error).__name__}: {error}")


def check(workload: Workload) -> None:
    """Raise AssertionError, naming the sides, unless all outputs and the expected value agree."""
    outputs = {label: side() for label, side in workload.sides.items()}
    label, output = next(iter(outputs.items()))
    if workload.expected is not None:
        assert_same(output, workload.expected, f"{label} and the expected value")
    for other in list(outputs)[1:]:
        assert_same(output, outputs[other], f"{label} and {other}")


def assert_same(actual: Any, expected: Any, who: str) -> None:
    """Compare two trees of tensors; the message says whose outputs differ."""
    torch.testing.assert_close(actual, expected, msg=lambda text: f"{who} differ: {text}")
