"""A workload: the same work on several sides, checked for equal outputs before it is timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree
import torch

from benchmarks.timing import Clock, Side, Timing, measure

BEST = "best peer"


@dataclass(frozen=True)
class Workload:
    """One row of a table: the same work on several sides, the first of which is the subject.

    `bounds` says what the subject is held against: the label of a side, or BEST, and how many times
    as long it may take. Without bounds its ratio to the second side is shown. `size` places the
    workload in a series (a depth, a number of ops) whose growth is reported; `expected` is a value
    found without any of the sides; `tolerance` is relative to the largest number of an output.
    Work that waits for another process is timed by a `clock` that does not stop meanwhile.
    """

    family: str
    name: str
    sides: Mapping[str, Side]
    bounds: Mapping[str, float] = field(default_factory=dict)
    expected: Any = None
    size: int | None = None
    tolerance: float | None = None
    clock: Clock = time.process_time

    @property
    def title(self) -> str:
        """The name `--only` looks in."""
        return f"{self.family}: {self.name}"

    def run(self, rounds: int) -> Result:
        """Compare the outputs of all sides, then time them."""
        refused = check(self)
        sides = {label: side for label, side in self.sides.items() if label not in refused}
        return Result(self, measure(sides, rounds, self.clock), refused=refused)


@dataclass(frozen=True)
class Comparison:
    """The subject against one peer: the ratio of the times, and the bound if there is one."""

    against: str
    ratio: float
    quartiles: tuple[float, float]
    bound: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is within the bound; None where there is no bound."""
        return None if self.bound is None else self.ratio <= self.bound


@dataclass(frozen=True)
class Result:
    """What came of a workload: a timing, or the error that kept it from being timed.

    `refused` holds the message of each peer that cannot do the work; the others are timed.
    """

    workload: Workload
    timing: Timing | None = None
    error: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def comparisons(self) -> list[Comparison]:
        """The subject against each peer that has a bound and was timed."""
        if self.timing is None:
            return []
        subject, *peers = self.timing.seconds
        bounds = self.workload.bounds or dict.fromkeys(peers[:1])
        best = min(peers, key=self.timing.median, default=None)
        found = []
        for against, bound in bounds.items():
            peer = best if against == BEST else against
            if peer in peers:
                ratio = self.timing.ratio(subject, peer)
                quartiles = self.timing.ratio_quartiles(subject, peer)
                found.append(Comparison(against, ratio, quartiles, bound))
        return found


def run(workload: Workload, rounds: int) -> Result:
    """Run a workload; an error becomes part of the result."""
    try:
        return workload.run(rounds)
    except Exception as error:  # one broken workload must not hide the others
        return Result(workload, error=described(error))


def check(workload: Workload) -> dict[str, str]:
    """Raise AssertionError, naming the sides, unless all outputs and the expected value agree.

    Gives the message of each peer that raised an error. An error of the subject is raised.
    """
    (label, subject), *peers = workload.sides.items()
    output, refused = subject(), {}
    if workload.expected is not None:
        assert_same(
            output, workload.expected, f"{label} and the expected value", workload.tolerance
        )
    for peer, side in peers:
        try:
            theirs = side()
        except Exception as error:  # a peer that cannot do the work is a finding, not a failure
            refused[peer] = described(error)
        else:
            assert_same(output, theirs, f"{label} and {peer}", workload.tolerance)
    return refused


def described(error: Exception) -> str:
    """The class of an error and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def assert_same(actual: Any, expected: Any, who: str, tolerance: float | None = None) -> None:
    """Compare two trees of tensors or other arrays; the message says whose outputs differ."""
    actual, expected = as_tensors(actual), as_tensors(expected)
    leaves = [leaf.detach() for leaf in optree.tree_leaves(expected)]
    largest = max((float(leaf.abs().max()) for leaf in leaves), default=0)
    tolerances = {} if tolerance is None else {"rtol": 0, "atol": tolerance * largest}
    torch.testing.assert_close(
        actual, expected, **tolerances, msg=lambda text: f"{who} differ: {text}"
    )


def as_tensors(tree: Any) -> Any:
    """A tree of tensors; the arrays of other libraries are copied."""
    return optree.tree_map(
        lambda leaf: leaf if isinstance(leaf, torch.Tensor) else torch.tensor(np.asarray(leaf)),
        tree,
    )
