"""Second derivatives by plain autograd through what ``forward`` saved."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from combined_cases import RIGHT, Sine
from oracle import vec
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.testing import assert_close
from unary import Op, function

import fxforms
from fxforms.errors import GradientError


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


def test_an_input_that_is_gone() -> None:
    x = vec(3).requires_grad_()
    assert_close(derivatives(lambda x: Sine.apply(x * 1), x), derivatives(torch.sin, x))


@pytest.mark.parametrize("free", [True, False])
def test_the_input_is_kept_as_long_as_the_graph(free: bool) -> None:
    x = vec(3).requires_grad_()
    for _ in range(2):
        y = x * 1
        z = Sine.apply(y)
        reference = weakref.ref(y)
        del y
        gc.collect()
        assert reference() is not None
        z.sum().backward(retain_graph=not free)
        if not free:
            del z
        assert reference() is None


def once_saving_a_cosine() -> Op:
    return function(
        "Once",
        forward=lambda ctx, x: ctx.save_for_backward(x.cos()) or x.sin(),
        backward=once_differentiable(lambda ctx, g: g * ctx.saved_tensors[0]),
    ).apply


def test_a_rule_that_is_differentiated_once_keeps_no_input() -> None:
    x, op = vec(3).requires_grad_(), once_saving_a_cosine()
    for _ in range(2):
        y = x * 1
        z = op(y)
        reference = weakref.ref(y)
        del y
        assert reference() is None
        (slope,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        assert_close(slope.detach(), x.detach().cos())
        with pytest.raises(GradientError, match="marked once_differentiable"):
            (slope + x).sum().backward()


def in_numpy(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(torch.as_tensor(np.cos(x.detach().numpy())))
    return x.sin()


def overwriting(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x.cos())
    ctx.mark_dirty(x)
    return x.sin_()


def a_number(ctx: Any, x: Tensor) -> Tensor:
    ctx.cosine = x.detach().cos().numpy()
    return x.sin()


def then_overwritten(op: Op) -> Op:
    def call(x: Tensor) -> Tensor:
        y = op(x)
        with torch.no_grad():
            x.mul_(2)
        return y

    return call


def then_forgotten(op: Op) -> Op:
    return lambda x: op(x).exp().log()


REFUSED = {
    "in place, and gone": (then_forgotten, overwriting, "forward changes in place"),
    "numpy": (lambda op: op, in_numpy, "takes out of torch"),
    "a number": (lambda op: op, a_number, "takes out of torch"),
    "in place": (lambda op: op, overwriting, "forward changes in place"),
    "changed": (then_overwritten, Sine.forward, "was changed in place since the call"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_residual_that_stays_a_constant_is_refused(case: str) -> None:
    change, forward, message = REFUSED[case]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] if ctx.saved_tensors else torch.as_tensor(ctx.cosine))

    op = change(function("Wave", forward=forward, backward=backward).apply)
    for _ in range(2):
        x = vec(3).requires_grad_()
        y, factor = x * 1, vec(3).requires_grad_()
        cosine = x.detach().cos()
        (slope,) = torch.autograd.grad((op(y) * factor).sum(), x, create_graph=True)
        assert_close(slope.detach(), (cosine * factor).detach())
        assert_close(torch.autograd.grad(slope.sum(), factor, retain_graph=True)[0], cosine)
        with pytest.raises(GradientError, match=message):
            (slope + x).sum().backward()


def test_a_rule_from_jvp_that_keeps_a_residual_beside_what_it_saves() -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_forward(x)
        ctx.cosine = x.cos()
        return x.sin() ** 2

    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 2 * t * ctx.cosine * ctx.saved_tensors[0].sin()

    op, x = function("Square", forward=forward, jvp=jvp).apply, vec(3).requires_grad_()
    for _ in range(2):
        assert_close(derivatives(op, x), derivatives(lambda x: x.sin() ** 2, x))


class Box:
    cosine: Tensor


def in_an_object(ctx: Any, x: Tensor) -> Tensor:
    ctx.kept = Box()
    ctx.kept.cosine = x.cos()
    return x.sin()


def in_a_function(ctx: Any, x: Tensor) -> Tensor:
    cosine = x.cos()
    ctx.kept = lambda g: g * cosine
    return x.sin()


def in_a_pullback(ctx: Any, x: Tensor) -> Tensor:
    output, pull = fxforms.vjp(torch.sin, x)
    ctx.kept = lambda g: pull(g)[0]
    return output  # type: ignore[no-any-return]


@pytest.mark.parametrize("forward", [in_an_object, in_a_function, in_a_pullback])
def test_a_residual_out_of_sight(forward: Any) -> None:
    """What a level would not see, the second run of ``forward`` gives anew."""

    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.kept(g) if callable(ctx.kept) else g * ctx.kept.cosine

    op, x = function("Sine", forward=forward, backward=backward).apply, vec(3).requires_grad_()
    for _ in range(2):
        assert_close(derivatives(op, x), derivatives(torch.sin, x))


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
def test_a_graph_that_forward_keeps() -> None:
    """Plain autograd goes through it a second time; a transform has no such graph."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.leaf = x.detach().requires_grad_()
            ctx.output = ctx.leaf.sin()
        return ctx.output.detach()  # type: ignore[no-any-return]

    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.autograd.grad(ctx.output, ctx.leaf, g, retain_graph=True)[0]

    op = function("Kept", forward=forward, backward=backward).apply
    x = vec(3).requires_grad_()
    for _ in range(2):
        assert_close(derivatives(op, x), derivatives(torch.sin, x))
    output = fxforms.vmap(op)(torch.stack([x, x])).sum()
    with pytest.raises(GradientError, match=r"Kept: .* not in the graph.* Build the graph"):
        torch.autograd.grad(output, x)
