"""A change in place of a tensor that a transform captures: refused, and then not made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close

import fxforms
from fxforms.errors import MutationError, RuleError


def _add_in_place() -> Any:
    class Add(fxforms.Function):
        @staticmethod
        def forward(x: Tensor, y: Tensor) -> Tensor:
            return x.add_(y)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def jvp(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x.add_(y)

    return Add.apply


def _add_in_place_combined() -> Any:
    class Add(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.add_(y)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, g

    return Add.apply


REFUSED_CHANGES: dict[str, Callable[[Any, Tensor], Any]] = {
    "grad": lambda f, x: fxforms.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: fxforms.jvp(f, (x,), (x,)),
    "vmap_grad": lambda f, x: fxforms.vmap(fxforms.grad(lambda x: f(x).sum()))(x.expand(2, 3)),
    "grad_grad": lambda f, x: fxforms.grad(lambda x: fxforms.grad(lambda x: f(x).sum())(x).sum())(
        x
    ),
    "jvp_grad": lambda f, x: fxforms.jvp(fxforms.grad(lambda x: f(x).sum()), (x,), (x,)),
}


@pytest.mark.parametrize("program", REFUSED_CHANGES)
@pytest.mark.parametrize("make", [_add_in_place, _add_in_place_combined])
def test_a_refused_change_of_a_captured_tensor_is_not_made(make: Any, program: str) -> None:
    add, captured = make(), torch.zeros(3, dtype=torch.float64)
    for _ in range(2):
        with pytest.raises((RuleError, MutationError)):
            REFUSED_CHANGES[program](lambda x: add(captured, x), vec(3))
        assert_close(captured, torch.zeros_like(captured))
    x = vec(3)
    assert_close(fxforms.grad(lambda x: add(x * 1, x).sum())(x), torch.full_like(x, 2))


def test_a_class_that_changes_nothing_is_found_once() -> None:
    """Its captured operands are copied no more."""

    class Add(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, g

    assert Add._rules.changes_inputs is None
    assert_close(fxforms.grad(lambda x: Add.apply(vec(3), x).sum())(vec(3)), torch.ones(3).double())
    assert Add._rules.changes_inputs is False
