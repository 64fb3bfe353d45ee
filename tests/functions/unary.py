"""Programs of transforms around a function of one vector, run by fxforms and by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import torch
from oracle import assert_trees_close, vec
from torch import Tensor

import fxforms

Op = Callable[[Tensor], Tensor]


def function(name: str, **methods: Any) -> Any:
    """A Function with these static methods; ``vmap_method`` and the like stay as they are."""
    attributes = {n: staticmethod(m) if callable(m) else m for n, m in methods.items()}
    return type(fxforms.Function)(name, (fxforms.Function,), attributes)


def loss(op: Op) -> Op:
    return lambda x: op(x).sin().sum()


def slope(T: Any, op: Op) -> Op:
    """A nonlinear scalar of the gradient, to be differentiated again."""
    return lambda x: T.grad(loss(op))(x).pow(2).sum()


def push(T: Any, op: Op) -> Callable[[Tensor], Any]:
    return lambda x: T.jvp(op, (x,), (x.cos(),))


def rows(x: Tensor) -> Tensor:
    """A batch of three vectors that differ."""
    return torch.stack([x, 2 * x, x.cos()])


PROGRAMS: dict[str, Callable[[Any, Op, Tensor], Any]] = {
    "vmap": lambda T, f, x: T.vmap(f)(rows(x)),
    "grad": lambda T, f, x: T.grad(loss(f))(x),
    "jvp": lambda T, f, x: push(T, f)(x),
    "vmap_grad": lambda T, f, x: T.vmap(T.grad(loss(f)))(rows(x)),
    "vmap_jvp": lambda T, f, x: T.vmap(push(T, f))(rows(x)),
    "grad_vmap": lambda T, f, x: T.grad(lambda X: T.vmap(loss(f))(X).sum())(rows(x)),
    "grad_grad": lambda T, f, x: T.grad(slope(T, f))(x),
    "jvp_grad": lambda T, f, x: T.jvp(T.grad(loss(f)), (x,), (x.cos(),)),
    "grad_jvp": lambda T, f, x: T.grad(lambda x: push(T, f)(x)[1].pow(2).sum())(x),
    "jvp_jvp": lambda T, f, x: T.jvp(push(T, f), (x,), (x.sin(),)),
    "vmap_grad_grad": lambda T, f, x: T.vmap(T.grad(slope(T, f)))(rows(x)),
    "grad_vmap_grad": lambda T, f, x: T.grad(lambda X: T.vmap(slope(T, f))(X).sum())(rows(x)),
    "grad_grad_grad": lambda T, f, x: T.grad(lambda x: T.grad(slope(T, f))(x).pow(2).sum())(x),
    "vmap_jvp_grad": lambda T, f, x: T.vmap(lambda x: T.jvp(T.grad(loss(f)), (x,), (x.cos(),)))(
        rows(x)
    ),
}
FIRST_ORDER = ("vmap", "grad", "jvp", "vmap_grad", "vmap_jvp", "grad_vmap")
SECOND_ORDER = tuple(name for name in PROGRAMS if name not in FIRST_ORDER)


def check(program: str, op: Op, plain: Op) -> None:
    """``program`` gives with ``op`` what plain autograd and loops give with ``plain``."""
    x = vec(3)
    assert_trees_close(PROGRAMS[program](fxforms, op, x), PROGRAMS[program](oracle, plain, x))


def all_of(cases: Any, programs: Any = tuple(PROGRAMS)) -> list[Any]:
    """Every pair ``(case, program)``."""
    return [(case, program) for case in cases for program in programs]
