"""NumPy in ``setup_context`` under ``jit``: as in ``forward``, at every first derivative."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from oracle import assert_trees_close
from torch import Tensor

import fxforms
from fxforms.errors import GradientError, TraceError

pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
X = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
ROWS = torch.stack([X, 2 * X])


def jit(f: Any) -> Any:
    return fxforms.jit(f, backend="eager")


def cosine(x: Tensor) -> Tensor:
    return torch.from_numpy(np.cos(x.detach().numpy()))


def sine(form: str) -> Any:
    """A new class; it saves what NumPy made of its input."""

    class Functional(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(cosine(inputs[0]))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    class Combined(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(cosine(x))
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return {"functional": Functional, "combined": Combined}[form].apply


def loss(op: Any) -> Any:
    return lambda x: op(x).exp().sum()


FIRST: dict[str, Any] = {
    "value": lambda T, f: f(X),
    "vmap": lambda T, f: T.vmap(f)(ROWS),
    "vmap_vmap": lambda T, f: T.vmap(T.vmap(f))(torch.stack([ROWS, ROWS])),
    "grad": lambda T, f: T.grad(loss(f))(X),
    "jvp": lambda T, f: T.jvp(f, (X,), (X,)),
    "vmap_grad": lambda T, f: T.vmap(T.grad(loss(f)))(ROWS),
    "vmap_jvp": lambda T, f: T.vmap(lambda x: T.jvp(f, (x,), (x,)))(ROWS),
    "grad_vmap": lambda T, f: T.grad(lambda X: T.vmap(loss(f))(X).sum())(ROWS),
}


@pytest.mark.parametrize("form", ["functional", "combined"])
@pytest.mark.parametrize("program", FIRST)
def test_first_derivatives(program: str, form: str) -> None:
    run, expected = FIRST[program], FIRST[program](oracle, torch.sin)
    op, inside = sine(form), jit(sine(form))
    outside = jit(lambda: run(fxforms, op))
    for _ in range(2):
        assert_trees_close(run(fxforms, inside), expected)
        assert_trees_close(outside(), expected)


@pytest.mark.parametrize("form", ["functional", "combined"])
def test_a_second_derivative_says_what_it_says_uncompiled(form: str) -> None:
    for op in (sine(form), jit(sine(form))):
        for f in (fxforms.hessian(loss(op)), jit(fxforms.hessian(loss(op)))):
            with pytest.raises(GradientError, match=r"leaves torch .* where it computes them"):
                f(X)


def test_numbers_on_ctx_are_refused() -> None:
    class Numbers(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.cosine = np.cos(inputs[0].detach().numpy())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * torch.from_numpy(ctx.cosine)

    for f in (jit(fxforms.grad(loss(Numbers.apply))), fxforms.grad(jit(loss(Numbers.apply)))):
        with pytest.raises(TraceError, match="leaves numbers or arrays on ctx"):
            f(X)
    assert torch.allclose(fxforms.grad(loss(Numbers.apply))(X), X.sin().exp() * X.cos())
