"""Bodies and rules that call ``torch.autograd.grad``, or detach what they save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, Op, all_of, check, function

import fxforms

pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")


def sine_by(pull: Callable[[Tensor, Tensor], Tensor]) -> Op:
    """``x.sin()``, its backward by ``pull(x, g)``."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    return function(
        "Sine", forward=forward, backward=lambda c, g: pull(c.saved_tensors[0], g)
    ).apply


@torch.enable_grad()
def by_grad(x: Tensor, g: Tensor) -> Tensor:
    v = x.detach().requires_grad_()
    return torch.autograd.grad(v.sin(), v, g)[0]


@torch.enable_grad()
def by_grad_of_a_clone(x: Tensor, g: Tensor) -> Tensor:
    v = x.detach().clone().requires_grad_(True)
    return torch.autograd.grad((v.sin(),), (v,), (g,), create_graph=True)[0]


@torch.enable_grad()
def by_attribute(x: Tensor, g: Tensor) -> Tensor:
    v = x.detach()
    v.requires_grad = True
    return torch.autograd.grad(v.sin(), v, g)[0]


@torch.enable_grad()
def by_backward(x: Tensor, g: Tensor) -> Tensor:
    v = x.detach().requires_grad_()
    v.sin().backward(g)
    assert v.grad is not None
    return v.grad


@torch.enable_grad()
def by_grad_of_what_is_saved(x: Tensor, g: Tensor) -> Tensor:
    x.requires_grad_()
    return torch.autograd.grad(x.sin(), x, g)[0]


@torch.enable_grad()
def by_two_backwards(x: Tensor, g: Tensor) -> Tensor:
    v, unused = x.detach().requires_grad_(), x.detach().requires_grad_()
    y = v.sin()
    y.backward(g / 2, retain_graph=True)
    y.backward(g / 2, inputs=[v])
    assert v.grad is not None
    assert unused.grad is None
    return v.grad


PULLS = [
    by_grad,
    by_grad_of_a_clone,
    by_grad_of_what_is_saved,
    by_attribute,
    by_backward,
    by_two_backwards,
]


@pytest.mark.parametrize(("pull", "program"), all_of(PULLS))
def test_a_backward_that_calls_the_engine(pull: Any, program: str) -> None:
    """At the first call of a class, and at later ones, when it is known."""
    op = sine_by(pull)
    for _ in range(2):
        check(program, op, torch.sin)


@pytest.mark.parametrize("pull", PULLS)
def test_the_same_under_plain_autograd(pull: Any) -> None:
    op, x = sine_by(pull), vec(3).requires_grad_()
    for _ in range(2):
        (slope,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
        assert_close(slope, x.cos())
        assert_close(torch.autograd.grad(slope.sum(), x)[0], -x.sin())


def test_a_saved_tensor_that_the_rule_makes_a_leaf_is_no_leaf_of_the_caller() -> None:
    op, x = sine_by(by_grad_of_what_is_saved), vec(3)
    for program in PROGRAMS:
        PROGRAMS[program](fxforms, op, x)
        assert not x.requires_grad


def test_a_backward_that_fills_the_gradient_of_a_parameter() -> None:
    """Also where it is recorded; the parameter's own gradient is as ever."""
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)

    @torch.enable_grad()
    def pull(x: Tensor, g: Tensor) -> Tensor:
        v = x.detach().requires_grad_()
        (w * v.sin()).backward(g)
        assert v.grad is not None
        return v.grad

    op, x = sine_by(pull), vec(3)
    assert_close(fxforms.grad(lambda x: op(x).sum())(x), x.cos())
    assert_close(w.grad, x.sin())
    leaf = x.clone().requires_grad_()
    for times in (2, 3):
        (slope,) = torch.autograd.grad(op(leaf).sum(), leaf, create_graph=True)
        assert_close(torch.autograd.grad(slope.sum(), leaf)[0], -x.sin())
        assert_close(w.grad, times * x.sin())


@torch.enable_grad()
def own_slope(x: Tensor) -> Tensor:
    v = x.detach().requires_grad_()
    return torch.autograd.grad(v.sin().sum(), v)[0]


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.cos()


KEPT: dict[str, Op] = {
    "detached": lambda x: x.detach().cos(),
    "detached afterwards": lambda x: x.cos().detach(),
    "data": lambda x: x.data.cos(),
    "no_grad": without_grad,
    "engine": own_slope,
    "in place": lambda x: x.cos().detach_(),
}


def functional(make: Op) -> Op:
    return function(
        "Functional",
        forward=lambda x: x.sin(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(make(inputs[0])),
        backward=lambda ctx, g: g * ctx.saved_tensors[0],
    ).apply


def combined(make: Op) -> Op:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = make(x)
        return x.sin()

    return function("Combined", forward=forward, backward=lambda ctx, g: g * ctx.kept).apply


@pytest.mark.parametrize("form", [functional, combined])
@pytest.mark.parametrize(("case", "program"), all_of(KEPT))
def test_a_residual_that_is_cut_off(case: str, program: str, form: Any) -> None:
    """It depends on the input all the same: a second derivative is not that of a constant."""
    op = form(KEPT[case])
    for _ in range(2):
        check(program, op, torch.sin)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_detached_factor_in_a_backward_stays_a_constant(program: str) -> None:
    """What a rule detaches, and asks no engine about, is what its author means."""

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].detach().cos()

    op = function("Fixed", forward=lambda ctx, x: ctx.save_for_backward(x) or x.sin())
    op.backward = staticmethod(backward)
    x = vec(3)
    linear = lambda x: x.sin().detach() + (x - x.detach()) * x.detach().cos()  # noqa: E731
    assert_close(fxforms.grad(lambda x: op.apply(x).sum())(x), x.cos())
    check(program, op.apply, linear)
