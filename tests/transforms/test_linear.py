"""``linearize`` and ``hvp``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from custom import PAIRS, Cube, plain
from oracle import finite_jacobian, vec
from torch import Tensor
from torch.testing import assert_close

import fxforms


@pytest.mark.parametrize("name", PAIRS)
def test_linearize_is_the_jvp(name: str) -> None:
    x, y, tx, ty = vec(3), vec(3), vec(3), vec(3)
    output, push = fxforms.linearize(PAIRS[name], x, y)
    assert_close(output, plain(x, y))
    expected = (4 * x * y * tx + 2 * x**2 * ty, y.sin() * tx + x * y.cos() * ty)
    assert_close(push(tx, ty), expected)
    assert_close(push(2 * tx, 2 * ty), tuple(2 * t for t in expected))


def test_linearize_runs_the_function_once() -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x**2

    x = vec(3)
    _, push = fxforms.linearize(f, x)
    push(x)
    push(x)
    assert len(calls) == 1


def test_linearize_with_structures() -> None:
    x, y = vec(3), vec(3)
    output, push = fxforms.linearize(lambda p, q: {"s": p["a"] * q[0]}, {"a": x}, [y])
    assert_close(output, {"s": x * y})
    assert_close(push({"a": y}, [x]), {"s": y * y + x * x})


def test_a_linear_map_under_other_transforms() -> None:
    x, t, batch = vec(3), vec(3), vec(4, 3)
    _, push = fxforms.linearize(Cube.apply, x)
    slope = 3 * x**2
    assert_close(fxforms.vmap(push)(batch), slope * batch)
    assert_close(fxforms.grad(lambda t: push(t).sum())(t), slope)
    assert_close(fxforms.jvp(push, (t,), (x,))[1], slope * x)
    mapped = fxforms.vmap(lambda x: fxforms.linearize(Cube.apply, x)[1](t))(batch)
    assert_close(mapped, 3 * batch**2 * t)
    outer = fxforms.grad(lambda x: fxforms.linearize(Cube.apply, x)[1](t).sum())(x)
    assert_close(outer, 6 * x * t)


def test_linearize_of_a_constant() -> None:
    x = vec(3)
    output, push = fxforms.linearize(lambda x: torch.ones(2), x)
    assert_close((output, push(x)), (torch.ones(2), torch.zeros(2)))


def test_complex_tangents_of_linearize() -> None:
    z, t = [torch.randn(3, dtype=torch.complex128) for _ in range(2)]
    _, push = fxforms.linearize(lambda z: z * z.conj() + z**2, z)
    assert_close(push(t), t * z.conj() + z * t.conj() + 2 * z * t)


def test_hvp_of_a_quadratic_form() -> None:
    a, x, v = vec(3, 3), vec(3), vec(3)
    value, (product,) = fxforms.hvp(lambda x: x @ a @ x, (x,), (v,))
    assert_close((value, product), (x @ a @ x, (a + a.T) @ v))


@pytest.mark.parametrize("name", PAIRS)
def test_hvp_against_differences_of_the_gradient(name: str) -> None:
    x, y, v, w = vec(2), vec(2), vec(2), vec(2)

    def f(x: Tensor, y: Tensor, op: Any) -> Tensor:
        first, second = op(x, y)
        return (first.sin() * second).sum()

    def gradient(both: Tensor) -> Tensor:
        leaves = both[:2].clone().requires_grad_(), both[2:].clone().requires_grad_()
        return torch.cat(torch.autograd.grad(f(*leaves, plain), leaves))

    value, product = fxforms.hvp(lambda x, y: f(x, y, PAIRS[name]), (x, y), (v, w))
    expected = finite_jacobian(gradient, torch.cat([x, y])) @ torch.cat([v, w])
    assert_close(value, f(x, y, plain))
    assert_close(torch.cat(product), expected, rtol=1e-5, atol=1e-6)


def test_hvp_with_structures_and_aux() -> None:
    x, v = vec(3), vec(3)
    f = lambda p: (Cube.apply(p["a"]).sum(), (2 * p["a"], "t"))  # noqa: E731
    value, (product,), aux = fxforms.hvp(f, ({"a": x},), ({"a": v},), has_aux=True)
    assert_close((value, product["a"], aux[0]), ((x**3).sum(), 6 * x * v, 2 * x))
    assert aux[1] == "t"


def test_hvp_under_vmap_and_grad() -> None:
    batch, v = vec(4, 3), vec(3)
    f = lambda x: Cube.apply(x).sum()  # noqa: E731
    mapped = fxforms.vmap(lambda x: fxforms.hvp(f, (x,), (v,))[1][0])(batch)
    assert_close(mapped, 6 * batch * v)
    outer = fxforms.grad(lambda x: fxforms.hvp(f, (x,), (v,))[1][0].sum())(batch[0])
    assert_close(outer, 6 * v)
