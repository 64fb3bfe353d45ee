"""fxforms beside torch.func: transforms of either inside the other, Functions of either kind."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import oracle
import pytest
import torch
from custom import PAIRS, plain
from oracle import assert_trees_close, vec
from torch import Tensor
from torch.testing import assert_close

import fxforms

EITHER = {"fxforms": fxforms, "torch.func": torch.func}
OURS = ["torch operations", "generated vmap", "hand-written vmap", "mark_dirty", "ctx attributes"]


class Plain(torch.autograd.Function):
    """The pair of ``custom`` as a plain torch Function in functional form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x**2 * y, x * y.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return 4 * x * y * g + y.sin() * h, 2 * x**2 * g + x * y.cos() * h

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return 4 * x * y * tx + 2 * x**2 * ty, y.sin() * tx + x * y.cos() * ty


def loss(f: Any) -> Any:
    return lambda x, y: (f(x, y)[0].sin() * f(x, y)[1]).sum()


def program(name: str, outer: Any, inner: Any, f: Any, x: Tensor, y: Tensor) -> Any:
    """Two transforms, the outer of one library and the inner of the other."""
    scalar = loss(f)
    if name == "vmap grad":
        return outer.vmap(inner.grad(scalar, (0, 1)), (0, None))(x, y)
    if name == "grad vmap":
        mapped = inner.vmap(f, (0, None))
        return outer.grad(lambda x, y: loss(mapped)(x, y), (0, 1))(x, y)
    if name == "grad grad":
        return outer.grad(lambda x: inner.grad(scalar)(x[0], y).pow(2).sum())(x)
    if name == "jvp grad":
        return outer.jvp(lambda x: inner.grad(scalar)(x, y), (x[0],), (x[1],))
    if name == "grad jvp":
        pushed = lambda x: inner.jvp(lambda x: f(x, y)[0], (x,), (x.cos(),))[1].sum()  # noqa: E731
        return outer.grad(pushed)(x[0])
    if name == "jvp vmap":
        return outer.jvp(inner.vmap(f, (0, None)), (x, y), (x.cos(), y.cos()))
    if name == "vmap jvp":
        return outer.vmap(lambda x: inner.jvp(lambda x: f(x, y), (x,), (x.cos(),)))(x)
    if name == "vmap vmap":
        return outer.vmap(inner.vmap(f, (0, None)), (None, 0))(x, torch.stack([y, 2 * y]))
    output, pullback = inner.vjp(lambda x: f(x, y), x[0])
    assert name == "vmap pullback"
    return outer.vmap(pullback)(tuple(torch.stack([u, 2 * u]) for u in output))


NAMES = [
    *("vmap grad", "grad vmap", "grad grad", "jvp grad", "grad jvp", "jvp vmap", "vmap jvp"),
    *("vmap vmap", "vmap pullback"),
]


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("outer", "inner"), [("fxforms", "torch.func"), ("torch.func", "fxforms")])
def test_our_functions_under_both(op: str, name: str, outer: str, inner: str) -> None:
    x, y = vec(3, 2), vec(2)
    actual = program(name, EITHER[outer], EITHER[inner], PAIRS[op], x, y)
    assert_trees_close(actual, program(name, oracle, oracle, plain, x, y))


@pytest.mark.parametrize("op", OURS)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "grad jvp"])
def test_our_functions_under_torch_func_alone(op: str, name: str) -> None:
    x, y = vec(3, 2), vec(2)
    actual = program(name, torch.func, torch.func, PAIRS[op], x, y)
    assert_trees_close(actual, program(name, oracle, oracle, plain, x, y))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("outer", ["fxforms", "torch.func"])
def test_plain_torch_functions_under_our_transforms(name: str, outer: str) -> None:
    """As far as torch.func itself goes: its forward mode does not nest over a graph's node."""
    x, y = vec(3, 2), vec(2)
    actual = program(name, EITHER[outer], fxforms, Plain.apply, x, y)
    assert_trees_close(actual, program(name, oracle, oracle, plain, x, y))


@pytest.mark.parametrize("first", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("second", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("outer", ["fxforms", "torch.func"])
@pytest.mark.parametrize("op", OURS)
def test_hessians_across_the_libraries(op: str, outer: str, second: str, first: str) -> None:
    x, y = vec(2), vec(2)
    expected = oracle.jacrev(oracle.grad(lambda x: loss(plain)(x, y)))(x)
    scalar = lambda x: loss(PAIRS[op])(x, y)  # noqa: E731
    (inner,) = [name for name in EITHER if name != outer]
    jacobian = getattr(EITHER[inner], first)(scalar)
    assert_close(getattr(EITHER[outer], second)(jacobian)(x), expected)


def test_jvp_of_torch_func_inside_ours() -> None:
    x, one = vec(3), torch.ones(3, dtype=torch.float64)
    inner = lambda x: torch.func.jvp(lambda x: x**3, (x,), (one,))[1]  # noqa: E731
    assert_close(fxforms.jvp(inner, (x,), (one,))[1], 6 * x)


def test_a_vjp_of_one_library_inside_a_graph_of_the_other() -> None:
    x = vec(3)
    f = lambda x: x**3  # noqa: E731
    for outer, inner in ((fxforms, torch.func), (torch.func, fxforms)):
        assert isinstance(outer, ModuleType)
        _, pullback = outer.vjp(lambda x, inner=inner: inner.vjp(f, x)[1](x)[0], x)
        assert_close(pullback(torch.ones_like(x))[0], 9 * x**2)
