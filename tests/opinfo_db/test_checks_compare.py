"""Comparing tensors: what differs is found, and shown with both values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from opinfo_db import OpInfo
from opinfo_db.checks.compare import Tally, largest_difference, show
from opinfo_db.checks.contract import CheckFailure

F64 = torch.float64
TALLY_ENTRY = OpInfo("x", torch.sin, lambda device, dtype, requires_grad: ())
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("actual", "expected", "amount"),
    [
        ([1.0, NAN], [1.0, NAN], 0),
        ([1.0, INF], [1.0, INF], 0),
        ([1.0], [NAN], INF),
        ([INF], [-INF], INF),
        ([INF], [1.0], INF),
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([], [], 0),
        ([2**60 + 1], [2**60], 1),
        ([True], [False], 1),
        ([1 + 1j], [1 + 2j], 1),
    ],
)
def test_largest_difference(actual: Any, expected: Any, amount: float) -> None:
    assert largest_difference(torch.tensor(actual), torch.tensor(expected)) == amount


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (torch.ones(2), torch.ones(2, 1), r"shape is \(2,\), expected \(2, 1\)"),
        (torch.ones(2), torch.ones(2, dtype=F64), "dtype is torch.float32"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), r"expected \[1 3\], got \[1 2\]"),
        (torch.ones(1), torch.ones(1) + 1e-3, "largest difference is 0.001"),
    ],
)
def test_unequal_tensors_fail_with_both_values(
    actual: Tensor, expected: Tensor, message: str
) -> None:
    with pytest.raises(CheckFailure, match=message) as caught:
        Tally(TALLY_ENTRY).equal("here", actual, expected)
    difference = caught.value.difference
    assert difference is not None
    assert difference.ratio > 1
    assert torch.equal(difference.actual, actual)
    assert torch.equal(difference.expected, expected)


def test_a_missing_tensor_fails() -> None:
    with pytest.raises(CheckFailure, match="1 tensors, expected 2"):
        Tally(TALLY_ENTRY).all_equal("here", [torch.ones(1)], [torch.ones(1)] * 2)


def test_a_tally_counts_and_keeps_the_worst() -> None:
    tally, one = Tally(TALLY_ENTRY), torch.ones(1)
    tally.equal("a", one, one)
    tally.equal("b", one, one + 5e-5)
    tally.equal("c", one, one + 1e-5)
    tally.true(True, "fine")
    result = tally.result()
    assert result.assertions == 4
    assert result.worst is not None
    assert result.worst.where == "b"


def test_nan_is_never_near() -> None:
    with pytest.raises(CheckFailure):
        Tally(TALLY_ENTRY).near("here", NAN, 1.0, 1e9)


def test_a_long_tensor_is_shown_short() -> None:
    assert show(torch.zeros(3, dtype=torch.bfloat16)) == "[0. 0. 0.]"
    assert len(show(torch.rand(1000))) < 80
    assert show(torch.zeros(1).expand(2_000_000)) == "a tensor of shape (2000000,)"
    assert show(torch.tensor([1j]).conj()) == "[0.-1.j]"
