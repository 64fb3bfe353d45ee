"""Captured functions with their operators compiled."""

from __future__ import annotations

import pytest
import torch
from capture_functions import Cube, NumpyCube
from capture_graphs import CASES, Make, assert_same, cotangents_for, leaf, make, transformer_block
from compilers import Parts

import fxforms


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_by_parts(case: Make) -> None:
    outputs, inputs = make(case)
    backward = fxforms.capture_backward(outputs, inputs).compile(Parts())
    cotangents = cotangents_for(outputs)
    with torch.no_grad():
        found = backward(cotangents)
    assert_same(found, torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


def test_parts_end_at_user_code() -> None:
    x = leaf(3)
    parts = Parts()
    y = Cube.apply(x.exp()).sin()
    y.register_hook(lambda grad: 2 * grad)
    fxforms.capture_backward(y.cos() * 3, x).compile(parts)
    assert parts.operators == [
        ["mul.Tensor", "sin.default", "neg.default", "mul.Tensor"],
        ["cos.default", "mul.Tensor"],
        ["mul.Tensor"],
    ]


def test_accumulation_is_compiled() -> None:
    x = leaf(3)
    x.grad = torch.ones(3).double()
    parts = Parts()
    backward = fxforms.capture_backward(x.sin()).compile(parts)
    assert parts.operators == [["cos.default", "mul.Tensor", "add.Tensor"]]
    with torch.no_grad():
        torch.testing.assert_close(backward(torch.ones(3).double()), [1 + x.cos()])


def test_by_inductor() -> None:
    outputs, inputs = make(transformer_block)
    backward = fxforms.capture_backward(outputs, inputs).compile()
    cotangents = cotangents_for(outputs)
    with torch.no_grad():
        found = backward(cotangents)
    assert_same(found, torch.autograd.grad(outputs, inputs, cotangents))


def test_by_inductor_around_numpy() -> None:
    x = leaf(3)
    y = NumpyCube.apply(x.sin()).exp()
    backward = fxforms.capture_backward(y, x).compile()
    g = torch.randn(3, dtype=torch.double)
    with torch.no_grad():
        found = backward(g)
    torch.testing.assert_close(found, torch.autograd.grad((x.sin() ** 3).exp(), x, g)[0])
