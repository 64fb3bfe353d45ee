"""Saved-tensor hooks inside and around a transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_inner_autograd import Sine, X
from torch import Tensor
from torch.autograd import forward_ad

import fxforms
from fxforms.errors import UnsupportedError


def copied(x: Tensor) -> Tensor:
    """Saves a copy: what the pack hook returns is computed from the saved tensor."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return (x.sin() * x).sum()


def test_saved_tensor_hooks_leave_no_graph_on_the_result() -> None:
    f = lambda x: (x.sin() * x).sum()  # noqa: E731
    with torch.autograd.graph.save_on_cpu():
        results = fxforms.grad(f)(X), fxforms.vjp(f, X)[1](torch.ones(()).double())[0]
    for result in (*results, fxforms.grad(copied)(X)):
        assert torch.allclose(result, X.cos() * X + X.sin())
        assert not result.requires_grad
    with torch.autograd.graph.save_on_cpu():
        jacobian = fxforms.jacrev(torch.sin)(X)
    assert torch.allclose(jacobian, X.cos().diag())
    assert not jacobian.requires_grad
    w = X.clone().requires_grad_()
    slope = fxforms.grad(lambda x: (x.sin() * w).sum())(X)
    assert torch.allclose(torch.autograd.grad(slope.sum(), w)[0], X.cos())


def test_saved_tensor_hooks_at_the_first_derivative() -> None:
    expected = X.cos() * X + X.sin()
    assert torch.allclose(fxforms.grad(copied)(X), expected)
    assert torch.allclose(fxforms.vmap(fxforms.grad(lambda x: copied(x[None])))(X), expected)
    with torch.autograd.graph.save_on_cpu():
        assert torch.allclose(fxforms.grad(lambda x: (x.sin() * x).sum())(X), expected)


def nested(f: Callable[[Tensor], Tensor]) -> Tensor:
    return fxforms.grad(lambda x: fxforms.grad(f)(x).sum())(X)


def offloaded() -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return nested(lambda x: x.sin().sum())


def over_plain_autograd() -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        w = X.clone().requires_grad_()
        return fxforms.grad(lambda x: (x.sin() * w).sum())(X)


def around(run: Callable[[], Any]) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return run()


FORWARD_OVER_REVERSE: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "hvp": lambda f: fxforms.hvp(f, (X,), (X,)),
    "jvp(grad)": lambda f: fxforms.jvp(fxforms.grad(f), (X,), (X,)),
    "jacfwd(grad)": lambda f: fxforms.jacfwd(fxforms.grad(f))(X),
    "jacfwd(jacrev)": lambda f: fxforms.jacfwd(fxforms.jacrev(f))(X),
    "jvp(vjp)": lambda f: fxforms.jvp(lambda x: fxforms.vjp(f, x)[1](X.sum())[0], (X,), (X,)),
}


@pytest.mark.parametrize("program", FORWARD_OVER_REVERSE)
def test_saved_tensor_hooks_below_a_forward_derivative_are_refused(program: str) -> None:
    """They would keep the tangent of a jvp level from the gradient."""
    run, plain = FORWARD_OVER_REVERSE[program], lambda x: (x.sin() * x).sum()
    for hooked in (lambda: run(copied), lambda: around(lambda: run(plain))):
        with pytest.raises(UnsupportedError, match="would be a silent zero"):
            hooked()
    tangent = fxforms.jvp(fxforms.grad(plain), (X,), (torch.ones_like(X),))[1]
    assert torch.allclose(tangent, 2 * X.cos() - X * X.sin())
    with torch.autograd.graph.save_on_cpu():  # first derivatives, of one mode and of the other
        assert torch.allclose(fxforms.jvp(plain, (X,), (X,))[1], (X.cos() * X + X.sin()) @ X)
    slope = fxforms.grad(lambda x: fxforms.jvp(copied, (x,), (torch.ones_like(X),))[1])(X)
    assert torch.allclose(slope, 2 * X.cos() - X * X.sin())


REVERSE: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": lambda x: fxforms.grad(lambda x: x.sin().sum())(x),
    "vjp": lambda x: fxforms.vjp(torch.sin, x)[1](torch.ones_like(x))[0],
    "jacrev": lambda x: fxforms.jacrev(torch.sin)(x).sum(0),
    "linearize": lambda x: fxforms.linearize(torch.sin, x)[1](torch.ones_like(x)),
    "vmap(grad)": lambda x: fxforms.vmap(fxforms.grad(torch.sin))(x),
}


@pytest.mark.parametrize("program", REVERSE)
def test_saved_tensor_hooks_between_plain_autograd_and_a_gradient_are_refused(program: str) -> None:
    """The term that goes through what they pack would be missing."""
    x, run = X.clone().requires_grad_(), REVERSE[program]
    with pytest.raises(UnsupportedError, match="would be a silent zero"):
        around(lambda: run(x))
    assert torch.allclose(torch.autograd.grad(run(x).sum(), x)[0], -X.sin())


def test_saved_tensor_hooks_between_a_dual_number_and_a_gradient_are_refused() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(UnsupportedError, match="would be a silent zero"):
            around(lambda: REVERSE["grad"](x))


@pytest.mark.parametrize("run", [lambda: nested(copied), offloaded, over_plain_autograd])
def test_saved_tensor_hooks_below_a_second_derivative_are_refused(run: Callable[[], Any]) -> None:
    """torch runs them without recording: the derivative through them would be zero."""
    with pytest.raises(UnsupportedError, match="would be a silent zero"):
        run()
    assert torch.allclose(nested(lambda x: x.sin().sum()), -X.sin())
    assert torch.allclose(fxforms.grad(copied)(X), X.cos() * X + X.sin())


def test_saved_tensor_hooks_around_a_function() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(torch.neg, lambda t: t):
            return Sine.apply(x).prod()

    assert torch.allclose(
        fxforms.grad(lambda x: f(x[:1]))(X), (-X).cos() * torch.tensor([1.0, 0.0])
    )
    assert torch.allclose(fxforms.vmap(fxforms.grad(lambda x: f(x[None])))(X), (-X).cos())


def test_an_unpack_hook_that_computes_under_vmap() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, torch.neg):
            return Sine.apply(x)

    assert torch.allclose(fxforms.vmap(fxforms.grad(f))(X), (-X).cos())


class Wave(fxforms.Function):
    """``sin(x * w)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x * w).sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        slope = g * (x * w).cos()
        return slope * w, slope * x


HOOKS: dict[str, tuple[Any, Any]] = {
    "nothing": (lambda t: t, lambda t: t),
    "pack copies": (torch.clone, lambda t: t),
    "unpack copies": (lambda t: t, torch.clone),
    "halves": (lambda t: 2 * t, lambda t: t / 2),
}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("hooks", HOOKS)
def test_what_a_function_saves_is_packed_with_recording(hooks: str, mapped: bool) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(*HOOKS[hooks]):
            return Wave.apply(x, w).sum()

    w, x = X.clone().requires_grad_(), X.expand(2, *X.shape)
    slopes = fxforms.vmap(fxforms.grad(f))(x)[0] if mapped else fxforms.grad(f)(x[0])
    expected = (X * w).cos() * w
    assert torch.allclose(slopes, expected)
    found = torch.autograd.grad(slopes.sum(), w)
    assert torch.allclose(found[0], torch.autograd.grad(expected.sum(), w)[0])


def test_packed_by_hooks_and_differentiated_twice_at_one_level() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
            y = Sine.apply(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g.sum()

    with pytest.raises(UnsupportedError, match="would be a silent zero"):
        fxforms.grad(f)(X)
