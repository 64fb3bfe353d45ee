"""Second derivatives by plain autograd through what ``forward`` saved."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from combined_cases import RIGHT, Sine
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import Op, function


def derivatives(f: Op, x: Tensor) -> list[Tensor]:
    """The first three, each of a nonlinear scalar of the one before."""
    found = []
    y = f(x).sin().sum()
    for _ in range(3):
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        found.append(slope)
        y = slope.pow(2).sum()
    return found


@pytest.mark.parametrize("case", RIGHT)
def test_derivatives_to_third_order(case: str) -> None:
    op, plain = RIGHT[case]
    x = vec(3).requires_grad_()
    for _ in range(2):  # the first call of a class, and a later one
        orders = 2 if case == "nested" else 3  # its backward drops the input of a Function
        assert_close(derivatives(op, x)[:orders], derivatives(plain, x)[:orders])


def test_noise_stays_the_constant_that_it_is() -> None:
    """A residual that no input enters is not taken from the second run, which draws others."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        ctx.save_for_backward(noise)
        return noise * x

    op = function("Noise", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    x = vec(3).requires_grad_()
    y = op.apply(x)
    noise = y.detach() / x.detach()
    (first,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    assert_close(torch.autograd.grad(first.sum(), x)[0], -(noise**2) * (noise * x).sin().detach())


def test_a_setup_context_that_saves_an_intermediate() -> None:
    op = function(
        "Sine",
        forward=lambda x: x.sin(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0].cos()),
        backward=lambda ctx, g: g * ctx.saved_tensors[0],
    ).apply
    x = vec(3).requires_grad_()
    assert_close(derivatives(op, x), derivatives(torch.sin, x))


def test_the_input_is_not_kept_alive() -> None:
    x = vec(3).requires_grad_()
    for _ in range(2):
        y = x * 1
        z = Sine.apply(y)
        reference = weakref.ref(y)
        del y
        gc.collect()
        assert reference() is None
        assert_close(torch.autograd.grad(z.sum(), x, create_graph=True)[0], x.cos().detach())


@pytest.mark.xfail(
    strict=True,
    reason="no tensor is left to run forward again on, nor one that an error could be attached to "
    "(a node of a graph takes only tensors as inputs); keeping it would cost memory torch frees",
)
def test_an_input_that_is_gone() -> None:
    x = vec(3).requires_grad_()
    assert_close(derivatives(lambda x: Sine.apply(x * 1), x), derivatives(torch.sin, x))
