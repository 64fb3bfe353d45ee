"""Functions inside packages that know nothing of fxforms; each test needs its package.

``pip install --no-deps entmax snntorch spikingjelly pytorch-revgrad brevitas torchdiffeq`` brings
all that is used here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import rows

import fxforms

Layer = Callable[[Any, Tensor], Tensor]

# The module that a layer is taken from, and the layer on one sample.
LAYERS: dict[str, tuple[str, Layer]] = {
    "entmax sparsemax": ("entmax", lambda m, x: m.sparsemax(x, dim=-1)),
    "entmax sparsemax_bisect": ("entmax", lambda m, x: m.sparsemax_bisect(x, dim=-1)),
    "entmax entmax15": ("entmax", lambda m, x: m.entmax15(x, dim=-1)),
    "entmax entmax_bisect": ("entmax", lambda m, x: m.entmax_bisect(x, alpha=1.3, dim=-1)),
    "snntorch atan": ("snntorch.surrogate", lambda m, x: m.atan()(x) * x),
    "snntorch fast_sigmoid": ("snntorch.surrogate", lambda m, x: m.fast_sigmoid()(x) * x),
    "snntorch Leaky": ("snntorch", lambda m, x: m.Leaky(beta=0.9)(x, 0 * x)[1] * x),
    "spikingjelly Sigmoid": (
        "spikingjelly.activation_based.surrogate",
        lambda m, x: m.Sigmoid()(x) * x,
    ),
    "spikingjelly ATan": ("spikingjelly.activation_based.surrogate", lambda m, x: m.ATan()(x) * x),
    "revgrad": ("pytorch_revgrad", lambda m, x: m.RevGrad(alpha=0.5)(x.sin())),
    "brevitas round_ste": ("brevitas.function.ops_ste", lambda m, x: m.round_ste(4 * x) * x),
    "brevitas binary_sign_ste": (
        "brevitas.function.ops_ste",
        lambda m, x: m.binary_sign_ste(x) * x,
    ),
}


def loss(layer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    weights = torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    return lambda x: (layer(x) * weights).sin().sum()


def plain_grad(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]


def plain_hessian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
    return torch.stack([torch.autograd.grad(s, leaf, retain_graph=True)[0] for s in slope])


@pytest.mark.filterwarnings("default")  # of the packages, and UnmappableWarning
@pytest.mark.parametrize("program", ["vmap_grad", "grad_vmap", "hessian"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_matches_a_loop(name: str, program: str) -> None:
    module_name, layer = LAYERS[name]
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        pytest.skip(f"{module_name}: {error}")
    f = loss(lambda x: layer(module, x))
    X = rows(vec(4))
    with fxforms.adopt_all():
        if program == "vmap_grad":
            actual = fxforms.vmap(fxforms.grad(f))(X)
        elif program == "grad_vmap":
            actual = fxforms.grad(lambda X: fxforms.vmap(f)(X).sum())(X)
        else:
            actual = torch.stack([fxforms.hessian(f)(x) for x in X])
    one = plain_hessian if program == "hessian" else plain_grad
    assert_close(actual, torch.stack([one(f, x) for x in X]), equal_nan=True)


class Decay(torch.nn.Module):
    def forward(self, time: Tensor, y: Tensor) -> Tensor:
        return -0.7 * y.sin()


@pytest.mark.filterwarnings("default")
def test_the_adjoint_of_an_ode() -> None:
    """Its backward calls ``torch.autograd.grad`` and fills tensors: a loop over the samples."""
    torchdiffeq = pytest.importorskip("torchdiffeq")
    times = torch.tensor([0.0, 1.0], dtype=torch.float64)
    solve = lambda x: torchdiffeq.odeint_adjoint(Decay(), x, times, method="rk4")  # noqa: E731
    f = loss(lambda x: solve(x)[-1])
    X = rows(vec(4))
    expected = torch.stack([plain_grad(f, x) for x in X])
    with fxforms.adopt_all():
        assert_close(fxforms.grad(f)(X[0]), expected[0])
        assert_close(fxforms.vmap(fxforms.grad(f))(X), expected)
        assert_close(fxforms.grad(lambda X: fxforms.vmap(f)(X).sum())(X), expected)
