"""Named tuples as inputs of a Function."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from torch import Tensor
from unary import PROGRAMS, check, function


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_named_tuple_is_the_gradient_of_one_input(program: str) -> None:
    def forward(ctx: Any, pair: Pair) -> Tensor:
        ctx.save_for_backward(*pair)
        return pair.a.sin() * 2 * pair.b

    def backward(ctx: Any, g: Tensor) -> Pair:
        a, b = ctx.saved_tensors
        return Pair(2 * b * a.cos() * g, 2 * a.sin() * g)

    op = function("OfPair", forward=forward, backward=backward)
    check(program, lambda x: op.apply(Pair(x, x.exp())), lambda x: x.sin() * 2 * x.exp())
