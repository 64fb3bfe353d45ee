"""What a jvp rule, or a backward rule in forward mode, may return beside plain tangents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import function, rows

import fxforms
from fxforms.errors import GradientError

X, ONES = vec(3), torch.ones(3, dtype=torch.float64)
BODIES = {
    "tuple": lambda ctx, x: (x.round(), x.floor()),
    "dict": lambda ctx, x: {"a": x.round(), "b": x.floor()},
}


@pytest.mark.parametrize("body", BODIES)
def test_none_stands_for_the_tangents_of_all_outputs(body: str) -> None:
    op = function("Steps", forward=BODIES[body], jvp=lambda ctx, t: None).apply

    def total(x: Tensor) -> Tensor:
        outputs = op(x)
        first, second = outputs.values() if isinstance(outputs, dict) else outputs
        return (first + second + x**2).sum()

    for _ in range(2):
        assert_close(fxforms.jvp(total, (X,), (ONES,))[1], (2 * X).sum())
        assert_close(fxforms.vmap(fxforms.grad(total))(rows(X)), 2 * rows(X))
        assert_close(fxforms.hessian(total)(X), 2 * torch.eye(3, dtype=torch.float64))


WRONG = {"a shape": lambda g: torch.ones(5), "no tensor": lambda g: 3, "a sum": torch.sum}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_a_wrong_gradient(case: str, transform: str) -> None:
    op = function("Twice", forward=lambda ctx, x: 2 * x, backward=lambda ctx, g: WRONG[case](g))
    programs: dict[str, Any] = {
        "grad": lambda: fxforms.grad(lambda x: op.apply(x).sum())(X),
        "jvp": lambda: fxforms.jvp(op.apply, (X,), (ONES,)),
        "vmap": lambda: fxforms.vmap(lambda x: fxforms.jvp(op.apply, (x,), (x,)))(rows(X)),
    }
    with pytest.raises(GradientError, match="The gradient of an input must have the shape"):
        programs[transform]()


@pytest.mark.parametrize("convert", [Tensor.float, lambda t: t + 0j])
def test_a_tangent_of_another_dtype_is_converted(convert: Any) -> None:
    op = function("Twice", forward=lambda ctx, x: 2 * x, jvp=lambda ctx, t: convert(2 * t)).apply
    for tangent in (
        fxforms.jvp(op, (X,), (ONES,))[1],
        fxforms.vmap(lambda x: fxforms.jvp(op, (x,), (x / x,))[1])(rows(X))[0],
        fxforms.grad(lambda x: op(x).sum())(X),
    ):
        assert_close(tangent, 2 * ONES)
