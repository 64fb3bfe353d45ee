"""Captured functions against finite differences, in cotangents and in saved values."""

from __future__ import annotations

import pytest
import torch
from capture_functions import Cube
from capture_graphs import (
    Case,
    Make,
    complex_numbers,
    cotangents_for,
    leaf,
    linear_algebra,
    make,
    recurrent,
    several_outputs,
    views_changed_in_place,
)

import fxforms


def function() -> Case:
    x = leaf(3)
    return [Cube.apply(x.sin()).exp()], [x]


# Without normalisation: torch does not differentiate its backward by the statistics that it saved.
CASES: list[Make] = [
    function,
    views_changed_in_place,
    several_outputs,
    complex_numbers,
    linear_algebra,
    recurrent,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_second_derivatives(case: Make) -> None:
    outputs, inputs = make(case)
    backward = fxforms.capture_backward(outputs, inputs)
    count = len(outputs)

    def flat(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(backward(list(values[:count]), list(values[count:])))

    values = [*cotangents_for(outputs), *backward.saved]
    given = [
        x.detach().clone().requires_grad_(x.is_floating_point() or x.is_complex()) for x in values
    ]
    assert torch.autograd.gradcheck(flat, given, fast_mode=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_forward_mode(case: Make) -> None:
    outputs, inputs = make(case)
    backward = fxforms.capture_backward(outputs, inputs)
    cotangents, tangents = cotangents_for(outputs), cotangents_for(outputs)
    with torch.no_grad():
        found = fxforms.jvp(backward, (cotangents,), (tangents,))[1]
        wanted = backward(tangents)  # linear in the cotangents
    torch.testing.assert_close(found, wanted)
