"""A workload is checked before it is timed, and its result says what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.growth import growths
from benchmarks.report import refusals, summary
from benchmarks.timing import Timing
from benchmarks.workload import BEST, Result, Workload, check, run


def constant(value: float) -> Any:
    return lambda: torch.tensor(value)


def measured(seconds: dict[str, float], **fields: Any) -> Result:
    """A result with given times, as if measured in one round."""
    sides = dict.fromkeys(seconds, constant(1.0))
    timing = Timing({}, {label: np.array([value]) for label, value in seconds.items()})
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
    result = run(Workload("f", "n", {"a": constant(1.0), "b": constant(2.0)}, {"b": 0.5}), 1)
    assert result.timing is None
    assert result.error is not None
    assert "a and b differ" in result.error
    assert result.comparisons == []


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


@pytest.mark.parametrize(("bound", "reached"), [(0.5, True), (0.49, False)])
def test_a_bound_is_reached_up_to_its_value(bound: float, reached: bool) -> None:
    (comparison,) = measured({"a": 1.0, "b": 2.0, "c": 100.0}, bounds={"b": bound}).comparisons
    assert comparison.ratio == 0.5
    assert comparison.reached is reached


def test_without_bounds_the_second_side_is_shown() -> None:
    (comparison,) = measured({"a": 1.0, "b": 2.0, "c": 100.0}).comparisons
    assert (comparison.against, comparison.ratio) == ("b", 0.5)
    assert comparison.reached is None


def test_each_bound_has_its_peer_and_the_best_is_found() -> None:
    bounds = {"c": 0.1, BEST: 0.3}
    far, best = measured({"a": 1.0, "b": 2.0, "c": 100.0}, bounds=bounds).comparisons
    assert (far.against, far.ratio, far.reached) == ("c", 0.01, True)
    assert (best.against, best.ratio, best.reached) == (BEST, 0.5, False)


def refuse() -> None:
    raise NotImplementedError("cannot do that\nsecond line")


def test_a_peer_that_cannot_do_the_work_is_left_out_and_quoted() -> None:
    sides = {"a": constant(1.0), "b": refuse, "c": constant(1.0)}
    result = run(Workload("f", "n", sides, {"b": 0.5, "c": 100.0}), 1)
    assert result.refused == {"b": "NotImplementedError: cannot do that"}
    assert [comparison.against for comparison in result.comparisons] == ["c"]
    assert refusals([result]) == ["f: n: b refused: NotImplementedError: cannot do that"]
    assert summary([result]) == "1 of 2 bounds reached"


def test_a_subject_that_cannot_do_the_work_fails() -> None:
    result = run(Workload("f", "n", {"a": refuse, "b": constant(1.0)}), 1)
    assert result.error == "NotImplementedError: cannot do that"


def test_other_libraries_arrays_are_compared() -> None:
    def array(value: float) -> Any:
        return lambda: {"x": np.array([value], dtype=np.float32)}

    tensor = lambda: {"x": torch.tensor([1.0])}  # noqa: E731
    assert check(Workload("f", "n", {"a": tensor, "b": array(1.0)})) == {}
    with pytest.raises(AssertionError, match="a and b differ"):
        check(Workload("f", "n", {"a": tensor, "b": array(1.1)}))


def test_a_tolerance_is_relative_to_the_largest_number() -> None:
    sides = {
        "a": lambda: torch.tensor([100.0, 0.0]),
        "b": lambda: torch.tensor([100.0, 0.5]),
    }
    check(Workload("f", "n", sides, tolerance=1e-2))
    with pytest.raises(AssertionError, match="a and b differ"):
        check(Workload("f", "n", sides, tolerance=1e-3))


def test_a_line_has_no_deviation() -> None:
    (growth,) = growths([measured({"a": 3.0 + 2.0 * n}, size=n) for n in (1, 2, 4, 8)])
    assert growth.seconds_per_step == pytest.approx(2.0)
    assert growth.worst_deviation == pytest.approx(0.0, abs=1e-9)


def test_a_square_deviates_from_a_line() -> None:
    (growth,) = growths([measured({"a": float(n * n)}, size=n) for n in range(1, 7)])
    assert growth.worst_deviation > 0.2


def test_workloads_without_a_size_have_no_growth() -> None:
    assert growths([measured({"a": 1.0})] * 4) == []
