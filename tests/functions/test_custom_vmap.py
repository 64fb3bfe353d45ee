"""A batch rule of the user's own: where it is used, and what it may return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms


def scaled() -> tuple[Any, list[Any]]:
    """``x.sin() * y`` in a dict, with a rule that notes how it was called."""
    calls: list[Any] = []

    @fxforms.custom_vmap
    def f(x: Tensor, y: Any = 2.0) -> dict[str, Tensor]:
        return {"out": x.sin() * y}

    @f.def_vmap
    def rule(size: int, batched: tuple[bool, bool], x: Tensor, y: Any) -> Any:
        calls.append((size, batched))
        y = y.reshape(-1, *[1] * (x.dim() - 1)) if batched[1] else y
        return {"out": x.sin() * y}, True

    return f, calls


X = torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 4)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_rule_gets_the_batch_in_front(dim: int) -> None:
    f, calls = scaled()
    assert torch.equal(fxforms.vmap(lambda x: f(x)["out"], dim, dim)(X), X.sin() * 2)
    assert calls == [(X.shape[dim], (True, False))]


def test_an_argument_that_is_mapped_too() -> None:
    f, calls = scaled()
    y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert torch.equal(fxforms.vmap(lambda x, y: f(x, y)["out"])(X, y), X.sin() * y[:, None])
    assert calls == [(3, (True, True))]


def test_without_vmap_the_body_runs() -> None:
    f, calls = scaled()
    assert torch.equal(f(X)["out"], X.sin() * 2)
    assert torch.equal(fxforms.grad(lambda x: f(x, 3.0)["out"].sum())(X), 3 * X.cos())
    assert calls == []


def test_derivatives_of_the_mapped_function() -> None:
    f, calls = scaled()
    mapped = fxforms.vmap(lambda x: f(x)["out"])
    assert torch.allclose(fxforms.grad(lambda x: mapped(x).sum())(X), 2 * X.cos())
    assert torch.allclose(fxforms.jvp(mapped, (X,), (X,))[1], 2 * X.cos() * X)
    second = fxforms.hessian(lambda x: mapped(x).sum())(X[:1, :2]).view(2, 2)
    assert torch.allclose(second, torch.diag(-2 * X[0, :2].sin()))
    assert len(calls) == 3


def test_mapping_a_derivative() -> None:
    f, _ = scaled()
    one = lambda x: f(x)["out"].sum()  # noqa: E731
    assert torch.allclose(fxforms.vmap(fxforms.grad(one))(X), 2 * X.cos())
    push = fxforms.vmap(lambda x: fxforms.jvp(lambda x: f(x)["out"], (x,), (x,))[1])
    assert torch.allclose(push(X), 2 * X.cos() * X)


def test_mapped_without_a_rule() -> None:
    @fxforms.custom_vmap
    def f(x: Tensor) -> Tensor:
        return x

    with pytest.raises(fxforms.errors.RuleError, match="f was mapped before def_vmap"):
        fxforms.vmap(f)(X)


def test_a_rule_that_returns_no_pair() -> None:
    @fxforms.custom_vmap
    def f(x: Tensor) -> Tensor:
        return x

    f.def_vmap(lambda size, batched, x: x)
    with pytest.raises(fxforms.errors.StructureError, match=r"must return \(output, out_batched\)"):
        fxforms.vmap(f)(X)
    f.def_vmap(lambda size, batched, x: (2 * x, True))
    assert torch.equal(fxforms.vmap(f)(X), 2 * X)
