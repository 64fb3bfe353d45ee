"""tanh of float32 within 2 units in the last place of float64's, odd, monotone, and compiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor.compile_fx import compile_fx_inner
from torch.fx.experimental.proxy_tensor import make_fx

import fxforms
from fxforms.staging import backends
from fxforms.staging.tanh import BORDER, tanh


def numbers(first: float, last: float, step: int) -> Tensor:
    """Every step-th float32 from one positive number to another."""
    ends = torch.tensor([first, last]).view(torch.int32).tolist()
    return torch.arange(ends[0], ends[1], step, dtype=torch.int32).view(torch.float32)


def errors(x: Tensor, y: Tensor) -> Tensor:
    """How far y is from tanh(x), in units in the last place of float32."""
    exact = torch.tanh(x.double())
    exponent = torch.frexp(exact)[1] - 24
    return (y - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent.clamp_min(-149))


ALL = numbers(1e-44, 1e38, 997)
NEAR_THE_BORDER = numbers(BORDER * 0.99, BORDER * 1.01, 1)
SPECIAL = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0])


@pytest.mark.parametrize("x", [ALL, NEAR_THE_BORDER], ids=["all", "border"])
def test_the_error_is_small(x: Tensor) -> None:
    y = tanh(x)
    assert errors(x, y).max() < 2
    assert torch.equal(tanh(-x), -y)


@pytest.mark.parametrize("x", [ALL, NEAR_THE_BORDER], ids=["all", "border"])
def test_it_nowhere_decreases_and_ends_at_one(x: Tensor) -> None:
    y = tanh(x)
    assert (y.diff() >= 0).all()
    assert y.max() <= 1
    assert (tanh(numbers(9.1, 1e38, 9973)) == 1).all()


def test_small_numbers_are_their_own() -> None:
    x = numbers(1e-44, 1e-4, 997)
    assert torch.equal(tanh(x), x)


def test_special_numbers() -> None:
    y = tanh(SPECIAL)
    assert y[0].isnan()
    assert y[1:].tolist() == [1, -1, 0, 0]
    assert y[3:].signbit().tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    assert tanh(torch.ones(2, dtype=dtype)) is NotImplemented
    graph = make_fx(lambda x: (torch.tanh(x),), tracing_mode="fake")(torch.ones(2, dtype=dtype))
    targets = [node.target for node in backends.lower(graph).graph.nodes]
    assert torch.ops.aten.tanh.default in targets


@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
def test_compiled_it_is_as_exact() -> None:
    x = torch.cat([ALL, -ALL, SPECIAL])
    graph = backends.lower(make_fx(lambda x: (torch.tanh(x),), tracing_mode="fake")(x))
    assert torch.ops.aten.tanh.default not in [node.target for node in graph.graph.nodes]
    with torch.no_grad(), torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        (y,) = compile_fx_inner(graph, [x], is_inference=True)([x])
    assert errors(x[:-5], y[:-5]).max() < 2
    assert y[-5].isnan()
    assert y[-4:].tolist() == [1, -1, 0, 0]
    assert y[-2:].signbit().tolist() == [False, True]


@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
def test_its_derivative_staged() -> None:
    x = torch.linspace(-4, 4, 33)
    grad = fxforms.jit(fxforms.vmap(fxforms.grad(torch.tanh)), compile="wait")
    torch.testing.assert_close(grad(x), 1 / torch.cosh(x.double()).square().float())
