"""``once_differentiable``: the first derivative is right, a second one raises, never zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.autograd.function import once_differentiable as torch_once
from torch.testing import assert_close

import fxforms
from fxforms.errors import GradientError


def sine(decorator: Any, where: str) -> Any:
    """``sin`` with a backward that may be differentiated once; ``where`` its input is kept."""

    class Sine(fxforms.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            if where == "saved":
                ctx.save_for_backward(inputs[0])
            elif where == "attribute":
                ctx.x = inputs[0]
            else:
                ctx.held = {"x": [inputs[0]]}

        @staticmethod
        @decorator
        def backward(ctx: Any, g: Tensor) -> Tensor:
            assert not torch.is_grad_enabled()
            if where == "saved":
                (x,) = ctx.saved_tensors
            else:
                x = ctx.x if where == "attribute" else ctx.held["x"][0]
            return g * x.cos()

    return Sine.apply


@pytest.fixture(params=[fxforms.once_differentiable, torch_once], ids=["ours", "torch's"])
def decorator(request: pytest.FixtureRequest) -> Any:
    return request.param


PLACES = ["saved", "attribute", "container"]


@pytest.mark.parametrize("where", PLACES)
def test_the_first_derivative(decorator: Any, where: str) -> None:
    f, x = sine(decorator, where), vec(3)
    assert_close(fxforms.grad(lambda x: f(x).sum())(x), x.cos())
    assert_close(fxforms.vmap(fxforms.grad(f))(x), x.cos())
    assert_close(fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(x), x.cos())
    assert_close(fxforms.jacrev(f)(x), torch.diag(x.cos()))
    leaf = x.clone().requires_grad_()
    f(leaf).sum().backward()
    assert_close(leaf.grad, x.cos())


def plain_second(f: Any, x: Tensor) -> None:
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True)
    torch.autograd.grad(first.sum(), leaf)


SECOND = {
    "grad of grad": lambda f, x: fxforms.vmap(fxforms.grad(fxforms.grad(f)))(x),
    "jacrev of jacrev": lambda f, x: fxforms.jacrev(fxforms.jacrev(f))(x),
    "grad of grad of vmap": lambda f, x: fxforms.grad(
        lambda x: fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(x).sum()
    )(x),
    "linearize": lambda f, x: fxforms.linearize(f, x)[1](x),
    "plain autograd": plain_second,
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", [name for name in SECOND if name != "linearize"])
def test_a_second_derivative_raises(decorator: Any, where: str, name: str) -> None:
    with pytest.raises(GradientError, match=r"Sine.backward is marked once_differentiable"):
        SECOND[name](sine(decorator, where), vec(3))


def test_linearize_differentiates_the_pullback(decorator: Any) -> None:
    with pytest.raises(GradientError, match="once_differentiable"):
        SECOND["linearize"](sine(decorator, "saved"), vec(3))


def test_a_third_derivative_of_a_twice_differentiable_outside_raises(decorator: Any) -> None:
    f = sine(decorator, "saved")
    g = lambda x: f(x) * x  # noqa: E731
    with pytest.raises(GradientError, match="once_differentiable"):
        fxforms.vmap(fxforms.hessian(g))(vec(3))


def test_a_result_that_does_not_need_the_second_derivative_is_fine(decorator: Any) -> None:
    """The gradient may be used in a graph, as a constant."""
    f, x, y = sine(decorator, "saved"), vec(3), vec(3)
    outer = lambda y: (fxforms.grad(lambda x: f(x).sum())(x) * y).sum()  # noqa: E731
    assert_close(fxforms.grad(outer)(y), x.cos())


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_may_be_changed_in_place(decorator: Any) -> None:
    f, x = sine(decorator, "saved"), vec(3)
    gradient = fxforms.grad(lambda x: f(x).sum())(x)
    gradient.mul_(2)
    assert_close(gradient, 2 * x.cos())
    leaf = x.clone().requires_grad_()
    for _ in range(2):
        f(leaf).sum().backward()
    assert_close(leaf.grad, 2 * x.cos())
    leaf.grad = None
    for _ in range(2):
        f(leaf).sum().backward(create_graph=True)
    assert_close(leaf.grad.detach(), 2 * x.cos())
    leaf.grad = None  # the graph that hangs on it refers to the leaf
