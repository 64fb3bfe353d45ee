"""Calls that are written wrong in a way of their own: the message says how to write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms
from fxforms import errors

X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "transform",
    ["grad", "value_and_grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "vmap"],
)
def test_a_transform_of_no_function(transform: str) -> None:
    with pytest.raises(errors.ArgumentError, match="takes a function, got 3"):
        getattr(fxforms, transform)(3)


def test_cotangents_given_one_by_one() -> None:
    _, pullback = fxforms.vjp(lambda x: (x, 2 * x), X)
    with pytest.raises(errors.ArgumentError, match=r"one pytree of cotangents.*\(\*, \*\)"):
        pullback(X, X)
    assert torch.equal(pullback((X, X))[0], 3 * X)


def test_saved_values_of_a_captured_pass() -> None:
    w = X.clone().requires_grad_()
    captured = fxforms.capture_backward({"a": w.sin().sum()}, w)
    one = torch.ones((), dtype=torch.float64)
    with pytest.raises(errors.StructureError, match="one pytree of cotangents, then the sequence"):
        captured({"a": one}, torch.tensor(2.0))
    with pytest.raises(errors.StructureError, match=r"outputs, \{'a': \*\}, got a single leaf"):
        captured(one)


def test_nondiff_argnums_is_a_tuple() -> None:
    with pytest.raises(errors.ArgumentError, match=r"nondiff_argnums=0 must be a tuple"):
        fxforms.custom_vjp(lambda x, n: x, nondiff_argnums=0)  # type: ignore[arg-type]


def test_hvp_names_the_function() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x**2).sum()

    with pytest.raises(errors.StructureError, match=r"hvp\(loss\): tangents\[0\]"):
        fxforms.hvp(loss, (X,), (torch.ones(4, dtype=torch.float64),))


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
def test_arguments_by_keyword_are_not_differentiated(transform: str) -> None:
    def f(x: Tensor, *, power: int, scale: Any) -> Tensor:
        return (scale * x**power).sum()

    expected = 6 * X**2 if transform != "hessian" else torch.diag(12 * X)
    found = getattr(fxforms, transform)(f)(X, power=3, scale=2 * torch.ones_like(X))
    torch.testing.assert_close(found, expected)
    with pytest.raises(errors.ArgumentError, match=rf"{transform}\(f\)"):
        getattr(fxforms, transform)(f)(3, power=3, scale=1)


def test_the_hessian_of_many_outputs_takes_keywords() -> None:
    found = fxforms.hessian(lambda x, n: torch.cat([x**n, x**n]))(X[:1], n=3)
    torch.testing.assert_close(found, torch.full((2, 1, 1), 6.0, dtype=torch.float64))
