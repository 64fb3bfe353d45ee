"""Every eager workload computes the same on all sides, and the closed forms are right."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import eager
from benchmarks.eager.transforms import nth_derivative
from benchmarks.workload import BEST, Workload, check

WORKLOADS = eager.workloads()


# torch.func's forward mode compiles its decompositions with torch.jit.script, which now warns.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.title)
def test_all_sides_agree(workload: Workload) -> None:
    check(workload)


def test_titles_are_unique() -> None:
    titles = [workload.title for workload in WORKLOADS]
    assert len(set(titles)) == len(titles)


def test_a_bound_is_held_against_a_peer_that_is_there() -> None:
    for workload in WORKLOADS:
        _, *peers = workload.sides
        assert set(workload.bounds) <= {*peers, BEST}, workload.title


@pytest.mark.parametrize("order", range(6))
def test_the_closed_form_is_a_derivative_of_the_one_before(order: int) -> None:
    x, step = torch.linspace(0.1, 1.1, 5, dtype=torch.float64), 1e-5
    difference = nth_derivative(x + step, order) - nth_derivative(x - step, order)
    torch.testing.assert_close(
        nth_derivative(x, order + 1), difference / (2 * step), rtol=1e-8, atol=0
    )


def test_the_closed_form_starts_at_the_function() -> None:
    x = torch.tensor([0.5], dtype=torch.float64)
    assert nth_derivative(x, 0).item() == pytest.approx(0.5 * math.sin(0.5))
