"""A workload is checked before it is timed, and its result says what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.growth import growths
from benchmarks.timing import Timing
from benchmarks.workload import Result, Workload, check, run


def constant(value: float) -> Any:
    return lambda: torch.tensor(value)


def measured(seconds: dict[str, float], **fields: Any) -> Result:
    """A result with given times, as if measured in one round."""
    sides = dict.fromkeys(seconds, constant(1.0))
    timing = Timing(1, {label: np.array([value]) for label, value in seconds.items()})
    return Result(Workload("family", "name", sides, **fields), timing)


def test_equal_outputs_pass() -> None:
    check(Workload("f", "n", {"a": constant(1.0), "b": constant(1.0)}, expected=torch.tensor(1.0)))


def test_the_sides_that_differ_are_named() -> None:
    sides = {"a": constant(1.0), "b": constant(1.0), "c": constant(2.0)}
    with pytest.raises(AssertionError, match="a and c differ"):
        check(Workload("f", "n", sides))


def test_sides_that_agree_on_a_wrong_value_are_found() -> None:
    sides = {"a": constant(1.0), "b": constant(1.0)}
    with pytest.raises(AssertionError, match="a and the expected value differ"):
        check(Workload("f", "n", sides, expected=torch.tensor(2.0)))


def test_a_workload_that_differs_is_not_timed() -> None:
    result = run(Workload("f", "n", {"a": constant(1.0), "b": constant(2.0)}, bound=0.5), 1)
    assert result.timing is None
    assert result.error is not None
    assert "a and b differ" in result.error
    assert result.ratio is None
    assert result.reached is None


def test_an_error_in_a_side_is_kept() -> None:
    def fail() -> None:
        raise ZeroDivisionError("nothing here")

    assert run(Workload("f", "n", {"a": fail}), 1).error == "ZeroDivisionError: nothing here"


def test_a_workload_is_timed_on_all_sides() -> None:
    result = run(Workload("f", "n", {"a": constant(1.0), "b": constant(1.0)}), 2)
    assert result.timing is not None
    assert {label: len(values) for label, values in result.timing.seconds.items()} == {
        "a": 2,
        "b": 2,
    }


@pytest.mark.parametrize(("bound", "reached"), [(0.5, True), (0.49, False), (None, None)])
def test_a_bound_is_reached_up_to_its_value(bound: float | None, reached: bool | None) -> None:
    result = measured({"a": 1.0, "b": 2.0, "c": 100.0}, bound=bound)
    assert result.ratio == 0.5
    assert result.reached is reached


def test_a_line_has_no_deviation() -> None:
    (growth,) = growths([measured({"a": 3.0 + 2.0 * n}, size=n) for n in (1, 2, 4, 8)])
    assert growth.seconds_per_step == pytest.approx(2.0)
    assert growth.worst_deviation == pytest.approx(0.0, abs=1e-9)


def test_a_square_deviates_from_a_line() -> None:
    (growth,) = growths([measured({"a": float(n * n)}, size=n) for n in range(1, 7)])
    assert growth.worst_deviation > 0.2


def test_workloads_without_a_size_have_no_growth() -> None:
    assert growths([measured({"a": 1.0})] * 4) == []
