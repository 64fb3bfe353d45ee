"""Complex Functions: lazy conjugates and negations on the way of a second derivative."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import fxforms
from fxforms import hessian, jacfwd, jacrev, jit, vmap


class Product(fxforms.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return g * b.conj(), g * a.conj()


def number(v: Tensor) -> Tensor:
    return torch.complex(v[:2], v[2:])


def by_function(v: Tensor) -> Tensor:
    return (Product.apply(number(v), number(v).conj()).real ** 2).sum()


def by_operators(v: Tensor) -> Tensor:
    return ((number(v) * number(v).conj()).real ** 2).sum()


V = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)


def second_derivative(v: Tensor) -> Tensor:
    """Of the sum of ``(a**2 + b**2)**2``, by hand."""
    a, b = v[:2], v[2:]
    mixed = torch.diag(8 * a * b)
    own = [torch.diag(12 * x**2 + 4 * y**2) for x, y in ((a, b), (b, a))]
    return torch.cat([torch.cat([own[0], mixed], 1), torch.cat([mixed, own[1]], 1)])


@pytest.mark.parametrize("f", [by_function, by_operators])
@pytest.mark.parametrize(
    "of",
    [
        hessian,
        lambda f: jacrev(jacrev(f)),
        lambda f: jacfwd(jacfwd(f)),
        lambda f: jit(hessian(f), backend="eager"),
        lambda f: lambda v: vmap(hessian(f))(torch.stack([v, v + 1]))[0],
    ],
)
def test_second_derivatives(f: Any, of: Any) -> None:
    assert_close(of(f)(V), second_derivative(V))


def test_a_lazy_negation_is_mapped() -> None:
    z = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
    assert_close(vmap(lambda z: z.conj().imag)(z), -z.imag)
    assert_close(vmap(vmap(lambda z: z.conj().imag), 1, 1)(z), -z.imag)
    assert_close(torch.func.vmap(lambda z: z.conj().imag)(z), -z.imag)
    captured = vmap(lambda x: x + z.conj().imag)(torch.zeros(2, 3, 4))
    assert_close(captured, -z.imag.expand(2, 3, 4))


class Square(fxforms.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0].conj()  # type: ignore[no-any-return]


def test_a_lazy_negation_is_mapped_between_other_levels() -> None:
    def product(x: Tensor) -> Tensor:  # 2 * x * x.sin()
        return Square.apply(torch.complex(x, x.sin())).imag

    second = fxforms.grad(fxforms.grad(product))
    third = fxforms.grad(lambda v: vmap(second)(v).sum())(V)
    assert_close(third, -6 * V.sin() - 2 * V * V.cos())
