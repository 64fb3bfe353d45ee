"""Donated arguments: outputs in their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxforms import grad, jit

OPTIONS: list[dict[str, Any]] = [{"backend": "eager"}, {"compile": "wait"}]


def step(parameters: dict[str, Any], gradients: dict[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] - 0.5 * gradients[name] for name in parameters}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_reuses_the_memory_of_the_parameters(options: dict[str, Any]) -> None:
    f = jit(step, donate_argnums=0, **options)
    parameters = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}
    gradients = {"a": torch.ones(3), "b": torch.ones(2, 2)}
    before = {name: x.data_ptr() for name, x in parameters.items()}
    for _ in range(3):
        parameters = f(parameters, gradients)
    assert {name: x.data_ptr() for name, x in parameters.items()} == before
    assert torch.equal(parameters["a"], torch.full((3,), -1.5))
    assert torch.equal(gradients["a"], torch.ones(3))
    assert f.cache_info().misses == 1


def test_what_fits_no_output_stays() -> None:
    f = jit(lambda x, y: (x.sum() + y.sum(), x.t()), donate_argnums=(0, 1), backend="eager")
    x, y = torch.ones(2, 3), torch.ones(3)
    total, transposed = f(x, y)
    assert total == 9
    assert transposed.data_ptr() == x.data_ptr()
    assert torch.equal(x, torch.ones(2, 3))


def test_nothing_is_overwritten_where_a_derivative_is_taken() -> None:
    f = jit(lambda x: x * x, donate_argnums=0, backend="eager")
    x = torch.tensor([3.0], requires_grad=True)
    f(x).backward()
    assert (x.item(), x.grad.item()) == (3.0, 6.0)  # type: ignore[union-attr]
    y = torch.tensor([3.0])
    assert grad(lambda y: f(y).sum())(y) == 6.0
    assert y == 3.0
