"""Rules that ask the engine for gradients by what they saved, next to what they have detached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import FIRST_ORDER, check, function

import fxforms
from fxforms.errors import GradientError

Layer = Callable[[Tensor, Tensor], Tensor]


def layer(own_weight: bool) -> Layer:
    """``sin(x * w)``, recomputed in backward, with an own leaf for the weight or not."""

    @torch.enable_grad()
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        x = x.detach().requires_grad_()
        if own_weight:
            w = w.detach().requires_grad_()
        return torch.autograd.grad((x * w).sin(), (x, w), g)

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x * w).sin()

    return function("Layer", forward=forward, backward=backward).apply  # type: ignore[no-any-return]


def twice(f: Layer) -> Layer:
    """The second layer's input depends on the weight that both share."""
    return lambda x, w: f(f(x, w), w).sin().sum()


def plain(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin()


@pytest.mark.parametrize("own_weight", [True, False])
def test_first_derivatives(own_weight: bool) -> None:
    f, x, w = twice(layer(own_weight)), vec(3), vec(3)
    expected = oracle.grad(twice(plain), (0, 1))(x, w)
    tangent = oracle.jvp(twice(plain), (x, w), (w, x))[1]
    for _ in range(2):
        assert_close(fxforms.grad(f, (0, 1))(x, w), expected, check_stride=False)
        assert not x.requires_grad
        assert not w.requires_grad
        assert_close(fxforms.jvp(f, (x, w), (w, x))[1], tangent)


def slopes(f: Layer, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(f(x, w), (x, w), create_graph=True)


@pytest.mark.parametrize("own_weight", [True, False])
def test_a_recorded_pass_of_plain_autograd(own_weight: bool) -> None:
    """What is detached does not enter the gradient by the weight."""
    f = twice(layer(own_weight))
    for _ in range(2):
        x, w = vec(3).requires_grad_(), vec(3).requires_grad_()
        found, expected = slopes(f, x, w), slopes(twice(plain), x, w)
        assert_close([g.detach() for g in found], [g.detach() for g in expected])
        scalar = sum(g.pow(2).sum() for g in expected)
        if own_weight:
            second = torch.autograd.grad(sum(g.pow(2).sum() for g in found), (x, w))
            assert_close(second, torch.autograd.grad(scalar, (x, w)))
        else:
            with pytest.raises(GradientError, match=r"Write w = w.detach\(\).requires_grad_\(\)"):
                sum(g.pow(2).sum() for g in found).backward()


def test_a_second_derivative() -> None:
    def second(T: Any, f: Layer) -> Any:
        first = T.grad(f, (0, 1))
        return T.grad(lambda x, w: sum(g.pow(2).sum() for g in first(x, w)), (0, 1))(x, w)

    x, w = vec(3), vec(3)
    for _ in range(2):
        found = second(fxforms, twice(layer(True)))
        assert_close(found, second(oracle, twice(plain)), check_stride=False)
    with pytest.raises(GradientError, match="for a gradient by a saved tensor"):
        second(fxforms, twice(layer(False)))


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize("program", FIRST_ORDER)
def test_a_rule_that_uses_up_what_is_on_ctx(program: str) -> None:
    """Its first run, which may be given up, leaves the next one what it had."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.inputs, ctx.once = [x], 1
        return x.sin()

    @torch.enable_grad()
    def backward(ctx: Any, g: Tensor) -> Tensor:
        del ctx.once
        v = ctx.inputs.pop().detach().requires_grad_()
        return torch.autograd.grad(v.sin(), v, g)[0]

    op = function("Sine", forward=forward, backward=backward).apply
    for _ in range(2):
        check(program, op, torch.sin)
