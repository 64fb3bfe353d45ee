"""Modules as functions of their parameters, with custom Functions inside."""

from __future__ import annotations

import copy

import pytest
import torch
from custom import Cube, Product
from oracle import vec
from torch import Tensor, nn
from torch.testing import assert_close

import fxforms


class Layer(nn.Module):
    """A linear layer and a custom activation with a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.register_buffer("shift", torch.ones(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(Cube.apply(self.linear(x)), self.scale) + self.shift


def loss(model: nn.Module, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return ((fxforms.functional_call(model, parameters, (x,)) - y) ** 2).sum()


@pytest.mark.parametrize("detach", [True, False])
def test_per_sample_gradients(detach: bool) -> None:
    model, x, y = Layer(), vec(4, 3), vec(4, 2)
    parameters = {n: p.detach() if detach else p for n, p in model.named_parameters()}
    gradient = fxforms.grad(lambda p, x, y: loss(model, p, x, y))
    actual = fxforms.vmap(gradient, (None, 0, 0))(parameters, x, y)
    for i in range(4):
        expected = torch.autograd.grad(((model(x[i]) - y[i]) ** 2).sum(), model.parameters())
        assert_close([actual[n][i].detach() for n in parameters], list(expected))


def test_an_ensemble() -> None:
    models = [Layer() for _ in range(3)]
    parameters, buffers = fxforms.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x = vec(5, 3)
    call = lambda p, b, x: fxforms.functional_call(base, (p, b), (x,))  # noqa: E731
    actual = fxforms.vmap(call, (0, 0, None))(parameters, buffers, x)
    assert_close(actual, torch.stack([model(x) for model in models]))


def test_a_jacobian_with_respect_to_parameters() -> None:
    model, x = Layer(), vec(3)
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    f = lambda p: fxforms.functional_call(model, p, (x,))  # noqa: E731
    for jacobian in (fxforms.jacrev, fxforms.jacfwd):
        actual = jacobian(f)(parameters)
        for i in range(2):
            expected = torch.autograd.grad(model(x)[i], model.parameters())
            assert_close([actual[n][i] for n in parameters], list(expected))


def test_an_optimiser_step_is_seen() -> None:
    model, x, y = Layer(), vec(3), vec(2)
    gradient = fxforms.grad(lambda x: ((model(x) - y) ** 2).sum())
    with torch.no_grad():
        model.scale.mul_(2)
    leaf = x.clone().requires_grad_()
    ((model(leaf) - y) ** 2).sum().backward()
    assert_close(gradient(x).detach(), leaf.grad)
