"""``custom_vmap``: the rule is used at every vmap level, derivatives come from it or the body."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, check

import fxforms
from fxforms.errors import RuleError, StructureError


def scaled_sine(seen: list[Any]) -> Any:
    """``k * x.sin()`` of a dict, whose rule notes what it is given."""

    @fxforms.custom_vmap
    def op(d: Any, k: Any = 2.0) -> Any:
        return {"y": k * d["x"].sin()}

    @op.def_vmap
    def rule(axis_size: int, in_batched: Any, d: Any, k: Any) -> Any:
        seen.append((axis_size, in_batched))
        return op(d, k), {"y": in_batched[0]["x"]}

    return op


@pytest.mark.parametrize("program", PROGRAMS)
def test_derivatives(program: str) -> None:
    seen: list[Any] = []
    op = scaled_sine(seen)
    check(program, lambda x: op({"x": x})["y"], lambda x: 2 * x.sin())


@pytest.mark.parametrize("program", [name for name in PROGRAMS if "vmap" in name])
def test_the_rule_is_used(program: str) -> None:
    """As in JAX, whatever is between the vmap and the call."""
    seen: list[Any] = []
    op = scaled_sine(seen)
    PROGRAMS[program](fxforms, lambda x: op({"x": x})["y"], vec(3))
    assert seen


def test_what_the_rule_is_given() -> None:
    seen: list[Any] = []
    op = scaled_sine(seen)
    x = vec(3, 4)
    result = fxforms.vmap(lambda x: op({"x": x}, k=torch.tensor(3.0))["y"], 1)(x)
    assert_close(result, 3 * x.T.sin())
    assert seen == [(4, ({"x": True}, False))]


def test_the_rule_may_differ_from_the_body() -> None:
    op = fxforms.custom_vmap(lambda x: x.sum())
    op.def_vmap(lambda size, batched, x: (10 * x.sum(1), True))
    x = vec(2, 3)
    assert_close(op(x[0]), x[0].sum())
    assert_close(fxforms.vmap(op)(x), 10 * x.sum(1))
    assert_close(fxforms.vmap(fxforms.vmap(op, 1))(vec(2, 3, 4)).shape, torch.Size([2, 4]))
    slope = fxforms.grad(lambda x: fxforms.vmap(op)(x).sum())(x)
    assert_close(slope, torch.full((2, 3), 10.0).double())


def tenfold() -> Any:
    """The sum of sines, whose rule gives ten times that: the results tell which one served."""
    op = fxforms.custom_vmap(lambda x, k: k * x.sin().sum())

    @op.def_vmap
    def rule(size: int, batched: Any, x: Tensor, k: Tensor) -> Any:
        assert batched[0]
        k = k[:, None] if batched[1] else k
        return 10 * (k * x.sin()).sum(1), True

    return op


def test_a_derivative_inside_a_vmap_is_that_of_the_rule() -> None:
    op, X, k = tenfold(), vec(2, 3), vec(2)
    T = fxforms
    assert_close(T.vmap(T.grad(op))(X, k), 10 * k[:, None] * X.cos())
    assert_close(T.vmap(T.grad(op, 1), (0, None))(X, k[0]), 10 * X.sin().sum(1))
    assert_close(T.vmap(T.grad(op), (0, None))(X, k[0]), 10 * k[0] * X.cos())
    curve = lambda x, k: T.grad(lambda x: T.grad(op)(x, k).sum())(x)  # noqa: E731
    assert_close(T.vmap(curve)(X, k), -10 * k[:, None] * X.sin())
    push = lambda x, k: T.jvp(op, (x, k), (x, k))[1]  # noqa: E731
    assert_close(T.vmap(push)(X, k), 10 * k * (X.sin() + X * X.cos()).sum(1))
    assert_close(
        T.vmap(lambda x, k: T.jvp(lambda x: op(x, k), (x,), (x,))[1], (0, None))(X, k[0]),
        10 * k[0] * (X * X.cos()).sum(1),
    )


def test_a_batch_of_directions_alone_takes_the_body() -> None:
    """The function itself is then not mapped."""
    op, x, k = tenfold(), vec(3), vec(1)[0]
    for jacobian in (fxforms.jacrev, fxforms.jacfwd):
        assert_close(jacobian(lambda x: op(x, k))(x), k * x.cos())
    assert_close(fxforms.hessian(lambda x: op(x, k))(x), torch.diag(-k * x.sin()))


def test_a_body_that_draws_numbers_draws_them_once() -> None:
    op = fxforms.custom_vmap(lambda x: (torch.randn(3, dtype=x.dtype) * x).sum())
    op.def_vmap(lambda size, batched, x: ((torch.randn(3, dtype=x.dtype) * x).sum(1), True))
    state = torch.get_rng_state()
    slopes, values = fxforms.vmap(fxforms.grad_and_value(op))(vec(2, 3))
    torch.set_rng_state(state)
    X, noise = vec(2, 3), vec(3)
    assert_close((slopes, values), (noise.expand(2, 3), (noise * X).sum(1)))


def test_an_output_without_batch() -> None:
    op = fxforms.custom_vmap(lambda x, y: {"x": x.sin(), "y": y**2, "n": 3})
    op.def_vmap(
        lambda size, batched, x, y: (
            {"x": x.sin(), "y": y**2, "n": 3},
            {"x": batched[0], "y": batched[1], "n": False},
        )
    )

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = op(x, y)
        return (out["x"] * out["y"] * out["n"]).sum()

    X, y = vec(2, 3), vec(3)
    first, second = fxforms.vmap(fxforms.grad(loss, (0, 1)), (0, None))(X, y)
    assert_close(first, 3 * X.cos() * y**2)
    assert_close(second, 6 * X.sin() * y)


def test_unmapped_it_is_the_body() -> None:
    op = fxforms.custom_vmap(lambda x, y: x * y)  # no rule is needed
    x = vec(3).requires_grad_()
    assert_close(torch.autograd.grad(op(x, y=x).sum(), x)[0], 2 * x.detach())
    one, two = torch.ones(()).double(), torch.full((), 2.0).double()
    assert_close(fxforms.vmap(lambda x: x + op(one, two))(x), x + 2)


@pytest.mark.parametrize(
    ("rule", "kind", "message"),
    [
        (None, RuleError, r"mul .*def_vmap"),
        (lambda size, batched, x: x, StructureError, r"mul.*\(output, out_batched\)"),
        (lambda size, batched, x: (x, (True, True)), StructureError, r"mul.*out_batched"),
    ],
)
def test_faults(rule: Any, kind: Any, message: str) -> None:
    def mul(x: Tensor) -> Tensor:
        return x * 2

    op = fxforms.custom_vmap(mul)
    if rule is not None:
        op.def_vmap(rule)
    with pytest.raises(kind, match=message):
        fxforms.vmap(op)(vec(2, 3))
    assert_close(fxforms.grad(lambda x: op(x).sum())(vec(3)), torch.full((3,), 2.0).double())
