"""Forward mode inside reverse mode, past a Function that changes its input in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
from oracle import assert_trees_close, vec
from torch import Tensor
from unary import Op, function, push, rows

import fxforms


def exponential(jvp: bool) -> Op:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x

    rule = lambda ctx, t: t * ctx.saved_tensors[0]  # noqa: E731
    methods = {"jvp": rule} if jvp else {"backward": rule}
    op = function("Exponential", forward=forward, **methods)
    return lambda x: op.apply(x * 1)


def last(T: Any, f: Op) -> Op:
    return lambda x: push(T, f)(x)[1].pow(2).sum()


PROGRAMS: dict[str, Callable[[Any, Op, Tensor], Any]] = {
    "grad_jvp": lambda T, f, x: T.grad(last(T, f))(x),
    "grad_vmap_jvp": lambda T, f, x: T.grad(lambda X: T.vmap(last(T, f))(X).sum())(rows(x)),
    "grad_jvp_jvp": lambda T, f, x: T.grad(
        lambda x: T.jvp(push(T, f), (x,), (x.sin(),))[1][1].pow(2).sum()
    )(x),
    "vmap_grad_jvp": lambda T, f, x: T.vmap(T.grad(last(T, f)))(rows(x)),
}


@pytest.mark.parametrize("jvp", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_right(program: str, jvp: bool) -> None:
    op, x = exponential(jvp), vec(3)
    scaled = lambda f: lambda x: f(x) * f(x).sin()  # noqa: E731
    for _ in range(2):
        found = PROGRAMS[program](fxforms, scaled(op), x)
        assert_trees_close(found, PROGRAMS[program](oracle, scaled(Tensor.exp), x))
