"""``jacrev``, ``jacfwd`` and ``hessian``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from custom import Cube, Mix, Product
from oracle import finite_jacobian, vec
from torch import Tensor
from torch.testing import assert_close

import fxforms

BOTH = pytest.mark.parametrize("jacobian", [fxforms.jacrev, fxforms.jacfwd])
F64 = torch.float64


@BOTH
def test_against_finite_differences(jacobian: Any) -> None:
    x, w = vec(2, 2), vec(3, 2)
    f = lambda x: (w @ x).tanh() * x.sum()  # noqa: E731
    actual = jacobian(f)(x)
    assert actual.shape == (3, 2, 2, 2)
    assert_close(actual, finite_jacobian(f, x), rtol=1e-6, atol=1e-8)


@BOTH
def test_structures_nest_outputs_over_inputs(jacobian: Any) -> None:
    x, y = vec(2), vec(3)

    def f(given: Any, k: float) -> Any:
        return {"outer": given["x"][:, None] * given["y"], "x": k * given["x"]}

    actual = jacobian(f)({"x": x, "y": y}, 2.0)
    eye = torch.eye(2, dtype=F64)
    assert_close(actual["outer"]["x"], eye[:, None] * y[:, None])
    assert_close(actual["outer"]["y"], x[:, None, None] * torch.eye(3, dtype=F64))
    assert_close(actual["x"], {"x": 2 * eye, "y": torch.zeros(2, 3, dtype=F64)})


@BOTH
@pytest.mark.parametrize("argnums", [0, 1, -1, (0,), (1, 0), (-1, 0)], ids=str)
def test_argnums(jacobian: Any, argnums: Any) -> None:
    x, y = vec(3), vec(3)
    blocks = [torch.diag(y), torch.diag(x)]
    actual = jacobian(Product.apply, argnums)(x, y)
    if isinstance(argnums, tuple):
        assert_close(actual, tuple(blocks[i] for i in argnums))
    else:
        assert_close(actual, blocks[argnums])


@BOTH
def test_has_aux(jacobian: Any) -> None:
    x, c = vec(3), vec(2)
    actual, aux = jacobian(lambda x: (x**2, (x + 1, c, "t", x.sum())), has_aux=True)(x)
    assert_close(actual, torch.diag(2 * x))
    assert_close((aux[0], aux[1], aux[3]), (x + 1, c, x.sum()))
    assert aux[2] == "t"


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 100])
def test_jacrev_in_chunks(chunk_size: int) -> None:
    x = vec(3)
    f = lambda x: (Cube.apply(x), x.outer(x))  # noqa: E731
    actual = fxforms.jacrev(f, chunk_size=chunk_size)(x)
    assert_close(actual[0], torch.diag(3 * x**2))
    assert_close(actual[1], finite_jacobian(lambda x: f(x)[1], x), rtol=1e-6, atol=1e-8)


@BOTH
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0)], ids=str)
def test_small_shapes(jacobian: Any, shape: tuple[int, ...]) -> None:
    x = vec(*shape)
    actual = jacobian(Cube.apply)(x)
    assert_close(actual, torch.diag(3 * x.flatten() ** 2).reshape(shape + shape))


# Each with its zero second derivative by both outer modes.
CONSTANT = [
    lambda x: (2 * x).sum(),
    lambda x: 2 * x,
    lambda x: torch.ones(2, 2, dtype=F64),
    lambda x: torch.ones(3, dtype=F64),
]


@pytest.mark.parametrize("function", CONSTANT)
@pytest.mark.parametrize(
    "nesting",
    [
        "jacrev",
        "jacfwd",
        "jacrev jacrev",
        "jacrev jacfwd",
        "jacfwd jacrev",
        "jacfwd jacfwd",
        "hessian",
    ],
)
def test_a_constant_jacobian(nesting: str, function: Any) -> None:
    """A derivative that is zero or depends on no input has its shape all the same."""
    x = vec(3)
    expected = finite_jacobian(function, x)
    actual = function
    for name in reversed(nesting.split()):
        actual = getattr(fxforms, name)(actual)
    if nesting in ("jacrev", "jacfwd"):
        assert_close(actual(x), expected, rtol=1e-6, atol=1e-8)
    else:
        assert_close(actual(x), torch.zeros(*expected.shape, 3, dtype=F64))


@BOTH
def test_one_draw_of_noise_for_all_rows(jacobian: Any) -> None:
    x = vec(3)
    f = lambda x: x * torch.ones(3, dtype=F64).bernoulli()  # noqa: E731
    options = {} if jacobian is fxforms.jacrev else {"randomness": "same"}
    actual = jacobian(f, **options)(x)
    diagonal = actual.diagonal()
    assert_close(actual, torch.diag(diagonal))
    assert set(diagonal.tolist()) <= {0.0, 1.0}


def test_hessian_of_a_quadratic_form() -> None:
    a, x = vec(3, 3), vec(3)
    assert_close(fxforms.hessian(lambda x: x @ a @ x)(x), a + a.T)


def test_hessian_blocks() -> None:
    x, y = vec(2), vec(2)
    f = lambda x, y: (Mix.apply(x, 1.0, y)[0]).sum()  # x**2 * y  # noqa: E731
    (xx, xy), (yx, yy) = fxforms.hessian(f, (0, 1))(x, y)
    assert_close(xx, torch.diag(2 * y))
    assert_close(xy, torch.diag(2 * x))
    assert_close(yx, torch.diag(2 * x))
    assert_close(yy, torch.zeros(2, 2, dtype=F64))


def test_hessian_of_structures_and_vectors() -> None:
    x = vec(2)
    actual = fxforms.hessian(lambda p: {"cube": Cube.apply(p["x"])})({"x": x})
    expected = torch.zeros(2, 2, 2, dtype=F64)
    for i in range(2):
        expected[i, i, i] = 6 * x[i]
    assert_close(actual["cube"]["x"]["x"], expected)


def test_hessian_against_finite_differences_of_the_gradient() -> None:
    x, w = vec(4), vec(3, 4)
    f = lambda x: torch.logsumexp((w @ x).tanh(), 0)  # noqa: E731

    def gradient(x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(f(leaf), leaf)[0]

    expected = finite_jacobian(gradient, x)
    assert_close(fxforms.hessian(f)(x), expected, rtol=1e-6, atol=1e-7)
