"""``vjp`` and what its pullback can do after the level has ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from custom import Cube, Nested, Product
from oracle import finite_jacobian, vec
from torch.testing import assert_close

import fxforms

F64 = torch.float64


def test_against_finite_differences() -> None:
    x, w, v = vec(4), vec(3, 4), vec(3)
    f = lambda x: (w @ x).tanh() / (1 + x @ x)  # noqa: E731
    output, pullback = fxforms.vjp(f, x)
    assert_close(output, f(x))
    assert_close(pullback(v)[0], v @ finite_jacobian(f, x), rtol=1e-6, atol=1e-8)


def test_structures_in_and_out() -> None:
    x, y = vec(3), vec(3)
    f = lambda p, q: {"s": p["a"] * q[0], "t": [q[0] ** 2]}  # noqa: E731
    output, pullback = fxforms.vjp(f, {"a": x}, (y,))
    assert_close(output, {"s": x * y, "t": [y**2]})
    gradients = pullback({"s": torch.ones(3, dtype=F64), "t": [x]})
    assert_close(gradients, ({"a": y}, (x + 2 * y * x,)))


def test_has_aux() -> None:
    x = vec(3)
    output, pullback, aux = fxforms.vjp(lambda x: (x**2, (x + 1, 7)), x, has_aux=True)
    assert_close((output, aux[0], pullback(x)[0]), (x**2, x + 1, 2 * x * x))
    assert aux[1] == 7


def test_a_pullback_is_called_many_times() -> None:
    x, g = vec(3), vec(3)
    _, pullback = fxforms.vjp(Cube.apply, x)
    for scale in (1.0, 2.0, -1.0):
        assert_close(pullback(scale * g)[0], scale * 3 * x**2 * g)


# The backward of Nested calls another Function, here on tensors of a level that has ended.
@pytest.mark.parametrize("function", [Cube.apply, lambda x: Nested.apply(x, x)[0] / 2])
def test_a_pullback_under_other_transforms(function: Any) -> None:
    x, g, batch = vec(3), vec(3), vec(4, 3)
    slope = 3 * x**2
    _, pullback = fxforms.vjp(function, x)
    assert_close(fxforms.vmap(pullback)(batch)[0], slope * batch)
    assert_close(fxforms.grad(lambda g: pullback(g)[0].sum())(g), slope)
    assert_close(fxforms.jvp(lambda g: pullback(g)[0], (g,), (x,))[1], slope * x)
    assert_close(fxforms.vjp(pullback, g)[1]((x,))[0], slope * x)
    assert_close(fxforms.jacrev(lambda g: pullback(g)[0])(g), torch.diag(slope))
    assert_close(fxforms.vmap(lambda x: fxforms.vjp(function, x)[1](g)[0])(batch), 3 * batch**2 * g)
    leaf = g.clone().requires_grad_()
    pullback(leaf)[0].sum().backward()
    assert_close(leaf.grad, slope)


def test_a_pullback_of_a_vmap_with_a_shared_argument() -> None:
    x, w, g = vec(4, 3), vec(3), vec(4, 3)
    _, pullback = fxforms.vjp(lambda x, w: fxforms.vmap(Product.apply, (0, None))(x, w), x, w)
    assert_close(pullback(g), (g * w, (g * x).sum(0)))
    batch = vec(2, 4, 3)
    assert_close(fxforms.vmap(pullback)(batch), (batch * w, (batch * x).sum(1)))


def test_an_output_without_dependence_pulls_back_to_zero() -> None:
    x = vec(3)
    output, pullback = fxforms.vjp(lambda x: torch.ones(2, dtype=F64), x)
    assert_close((output, pullback(output)[0]), (torch.ones(2, dtype=F64), torch.zeros(3).double()))


def test_an_output_that_is_an_input_or_a_captured_tensor() -> None:
    x, y = vec(3), vec(3).requires_grad_()
    (first, second), pullback = fxforms.vjp(lambda x: (x, y), x)
    assert first is not None
    assert_close((first, second.detach()), (x, y.detach()))
    assert_close(pullback((x, x))[0], x)


def test_grad_modes_of_a_pullback() -> None:
    x = vec(3).requires_grad_()
    _, pullback = fxforms.vjp(Cube.apply, x)
    with torch.no_grad():
        assert not pullback(torch.ones(3, dtype=F64))[0].requires_grad
    gradient = pullback(torch.ones(3, dtype=F64))[0]
    assert_close(torch.autograd.grad(gradient.sum(), x)[0], 6 * x.detach())


@pytest.mark.parametrize("real", [(True, False), (False, True), (False, False)])
def test_complex_values_follow_torch_autograd(real: tuple[bool, bool]) -> None:
    x, y = [torch.randn(3, dtype=F64 if r else torch.complex128) for r in real]
    f = lambda x, y: (x * y.conj() + x**2).cos()  # noqa: E731
    output, pullback = fxforms.vjp(f, x, y)
    cotangent = torch.randn_like(output)
    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    expected = torch.autograd.grad(f(*leaves), leaves, cotangent)
    assert_close(pullback(cotangent), expected)
