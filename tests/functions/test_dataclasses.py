"""Dataclasses in and out of ``apply``, with fields that are no tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from unary import PROGRAMS, check, function

import fxforms
from fxforms.errors import StructureError


@dataclasses.dataclass
class Scaled:
    factor: float
    weight: Tensor


pytree.register_dataclass(Scaled)


@pytest.mark.parametrize("factor", [None, 2.0])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dataclass_with_a_number_in_it(program: str, factor: float | None) -> None:
    """Its gradient may hold None there, as torch leaves a field of None out, or anything else."""

    def forward(ctx: Any, scaled: Scaled) -> Tensor:
        ctx.factor = scaled.factor
        ctx.save_for_backward(scaled.weight)
        return scaled.weight.sin() * scaled.factor

    def backward(ctx: Any, g: Tensor) -> Scaled:
        return Scaled(factor, g * ctx.saved_tensors[0].cos() * ctx.factor)  # type: ignore[arg-type]

    op = function("Scale", forward=forward, backward=backward)
    check(program, lambda x: op.apply(Scaled(2.0, x)), lambda x: 2 * x.sin())


@dataclasses.dataclass
class Unknown:
    value: Any
    count: int


@dataclasses.dataclass
class Slotted:
    __slots__ = ("count", "value")
    value: Any
    count: int


OUTPUTS: dict[str, Any] = {
    "a tensor": lambda y: Unknown(y, 3),
    "a list": lambda y: Unknown([y], 3),
    "slots": lambda y: Slotted(y, 3),
    "in a tuple": lambda y: (y, Unknown(y, 3)),
}
X = torch.tensor([0.5, -1.0, 2.0]).double()
RUN: dict[str, Any] = {
    "plain": lambda f: f(X),
    "backward": lambda f: f(X.clone().requires_grad_()),
    "grad": lambda f: fxforms.grad(f)(X),
    "jvp": lambda f: fxforms.jvp(f, (X,), (X,)),
    "jacrev": lambda f: fxforms.jacrev(f)(X),
    "linearize": lambda f: fxforms.linearize(f, X),
    "hessian": lambda f: fxforms.hessian(f)(X),
    "vmap": lambda f: fxforms.vmap(f)(X[:, None]),
    "vmap(grad)": lambda f: fxforms.vmap(fxforms.grad(f))(X[:, None]),
    "grad(vmap)": lambda f: fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(X[:, None]),
}


def first_value(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output.value if hasattr(output, "value") else output[-1]
    return output.sum()


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("program", RUN)
@pytest.mark.parametrize("combined", [False, True])
def test_an_unknown_dataclass_that_is_returned(program: str, kind: str, combined: bool) -> None:
    """Refused from the first call on: a level cannot see into it, and gave zeros."""

    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return OUTPUTS[kind](x**2)

    backward = lambda ctx, *g: first_value(g[0]) * 2 * ctx.saved_tensors[0]  # noqa: E731
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if not combined:
        methods["forward"] = staticmethod(lambda x: OUTPUTS[kind](x**2))
        methods["setup_context"] = staticmethod(lambda ctx, xs, out: ctx.save_for_backward(*xs))
    op: Any = type("Square", (fxforms.Function,), methods | {"generate_vmap_rule": True})
    for _ in range(2):
        with pytest.raises(StructureError, match=r"A Function returned a \w+, a dataclass"):
            RUN[program](lambda x: first_value(op.apply(x)))


def test_an_unknown_dataclass_that_is_given() -> None:
    op: Any = function("Value", forward=lambda c, q: q.value, backward=lambda c, g: g)
    for run in (
        lambda: op.apply(Unknown(X, 3)),
        lambda: fxforms.grad(lambda x: op.apply(Unknown(x, 3)))(X),
    ):
        with pytest.raises(StructureError, match="A Function was given a Unknown"):
            run()
