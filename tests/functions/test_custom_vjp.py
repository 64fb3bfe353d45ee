"""``custom_vjp`` as JAX has it: the function runs where nothing asks for its derivative.

So ``fwd`` may call the decorated function, at any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import Op, all_of, check

import fxforms


@fxforms.custom_vjp
def sine(x: Tensor) -> Tensor:
    return x.sin()


sine.defvjp(lambda x: (sine(x), x), lambda x, ct: (ct * x.cos(),))


@fxforms.custom_vjp
def exponential(x: Tensor) -> Tensor:
    return x.exp()


def _forward(x: Tensor) -> tuple[Tensor, Tensor]:
    y = exponential(x)
    return y, y


exponential.defvjp(_forward, lambda y, ct: (ct * y,))


@fxforms.custom_vjp
def shifted(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"y": x["a"].exp() + x["b"]}


shifted.defvjp(
    lambda x: (shifted(x), shifted({"a": x["a"], "b": 0 * x["b"]})["y"]),
    lambda saved, ct: ({"a": ct["y"] * saved, "b": ct["y"]},),
)


CALLING_ITSELF: dict[str, tuple[Op, Op]] = {
    "an input saved": (sine, torch.sin),
    "an output saved": (exponential, torch.exp),
    "trees": (lambda x: shifted({"a": x, "b": x.sin()})["y"], lambda x: x.exp() + x.sin()),
}


@pytest.mark.parametrize(("case", "program"), all_of(CALLING_ITSELF))
def test_a_forward_rule_that_calls_the_function(case: str, program: str) -> None:
    check(program, *CALLING_ITSELF[case])


def _derivative(order: int) -> Callable[[Tensor], Tensor]:
    return lambda x: (x + order * torch.pi / 2).sin()


@pytest.mark.parametrize("order", range(1, 5))
def test_every_order_in_reverse_and_in_forward_mode(order: int) -> None:
    x = vec(3)
    reverse: Op = sine
    forward: Op = sine
    for _ in range(order):
        reverse = fxforms.grad(reverse)
        forward = fxforms.jacfwd(forward)
    assert_close(fxforms.vmap(reverse)(x), _derivative(order)(x))
    assert_close(fxforms.vmap(forward)(x), _derivative(order)(x))
    if order < 4:
        staged = fxforms.jit(fxforms.vmap(reverse), backend="eager")
        assert_close(staged(x), _derivative(order)(x))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_order_under_plain_autograd(order: int) -> None:
    x = vec(3).requires_grad_()
    y = sine(x)
    for _ in range(order):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert_close(y, _derivative(order)(x))


def test_a_staged_function_keeps_the_rule() -> None:
    clipped = fxforms.custom_vjp(lambda x: x**2)
    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: ((2 * x * ct).clamp(-3, 3),))
    x = torch.tensor([1.0, 5.0])
    staged = fxforms.jit(clipped, backend="eager")
    assert_close(staged(x), torch.tensor([1.0, 25.0]))
    assert_close(fxforms.grad(lambda x: staged(x).sum())(x), torch.tensor([2.0, 3.0]))


class Recorder:
    """A decorated function that notes which of its bodies ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.call = fxforms.custom_vjp(self.fun)
        self.call.defvjp(self.fwd, lambda x, ct: (ct * x.cos(),))

    def fun(self, x: Tensor) -> Tensor:
        self.ran.append("fun")
        return x.sin()

    def fwd(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.ran.append("fwd")
        return x.sin(), x


@pytest.fixture
def recorder() -> Recorder:
    made = Recorder()
    made.call(vec(3))  # the first call of a class runs in a form of its own
    made.ran.clear()
    return made


WITHOUT_DERIVATIVE: dict[str, Callable[[Op, Tensor], Any]] = {
    "no level": lambda f, x: f(x),
    "vmap": lambda f, x: fxforms.vmap(f)(x),
    "vmap of vmap": lambda f, x: fxforms.vmap(fxforms.vmap(f))(x[None]),
    "torch.func.vmap": lambda f, x: torch.func.vmap(f)(x),
    "no_grad": lambda f, x: torch.no_grad()(f)(x.clone().requires_grad_()),
}
WITH_DERIVATIVE: dict[str, Callable[[Op, Tensor], Any]] = {
    "grad": lambda f, x: fxforms.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: fxforms.jvp(f, (x,), (x,)),
    "vmap of grad": lambda f, x: fxforms.vmap(fxforms.grad(f))(x),
    "grad of vmap": lambda f, x: fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(x),
    "requires_grad": lambda f, x: f(x.clone().requires_grad_()),
    "vmap of requires_grad": lambda f, x: fxforms.vmap(f)(x.clone().requires_grad_()),
}


@pytest.mark.parametrize("case", WITHOUT_DERIVATIVE)
def test_the_function_runs_where_nothing_differentiates(case: str, recorder: Recorder) -> None:
    WITHOUT_DERIVATIVE[case](recorder.call, vec(3))
    assert set(recorder.ran) == {"fun"}


@pytest.mark.parametrize("case", WITH_DERIVATIVE)
def test_fwd_runs_where_something_differentiates(case: str, recorder: Recorder) -> None:
    WITH_DERIVATIVE[case](recorder.call, vec(3))
    assert set(recorder.ran) == {"fwd"}


def test_a_function_in_numpy_is_looped_over() -> None:
    def numpy_sine(x: Tensor) -> Tensor:
        return torch.as_tensor(np.sin(x.numpy()))

    call = fxforms.custom_vjp(numpy_sine)
    call.defvjp(lambda x: (call(x), x), lambda x, ct: (ct * x.cos(),))
    x = vec(3)
    with pytest.warns(fxforms.UnmappableWarning, match="numpy_sine cannot be mapped"):
        assert_close(fxforms.vmap(call)(x), x.sin())
    assert_close(fxforms.vmap(fxforms.grad(call))(x), x.cos())
