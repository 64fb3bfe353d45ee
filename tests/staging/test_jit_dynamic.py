"""``dynamic=True`` where symbols for sizes do not go through: each size gets a right graph."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxforms
from fxforms.staging import jitted

SIZES = (2, 3, 7, 3)


def jit(f: Callable[..., Any]) -> Any:
    return fxforms.jit(f, backend="eager", dynamic=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(8, 4), nn.Flatten(0, 1), nn.BatchNorm1d(4), nn.Tanh()),
        lambda: nn.Conv1d(4, 2, 3),
        Attention,
        Recurrent,
    ],
)
def test_a_module_that_is_trained(make: Callable[[], nn.Module]) -> None:
    model = make()
    twin, f = copy.deepcopy(model), jit(model)
    for n in SIZES:
        x = torch.randn(n, 4, 8)
        torch.testing.assert_close(f(x), twin(x))
        f(x).square().sum().backward()
        twin(x).square().sum().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(f(x), twin(x))
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


def test_a_module_that_is_used_has_one_trace() -> None:
    f = jit(Attention().eval())
    with torch.no_grad():
        for n in SIZES:
            f(torch.randn(n, 4, 8))
    assert f.cache_info()[:3] == (3, 1, 1)


def sine(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


class Sine(fxforms.Function):
    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return sine(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return ctx.saved_tensors[0].cos() * cotangent


def by_sample(x: Tensor) -> Tensor:
    return fxforms.pure_callback(sine, x, x, vmap_method="sequential")


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: fxforms.pure_callback(sine, x, x) * 2, lambda x: x.sin() * 2),
        (fxforms.vmap(by_sample), torch.sin),
        (Sine.apply, torch.sin),
        (fxforms.vmap(fxforms.grad(lambda x: Sine.apply(x).sum())), torch.cos),
    ],
)
def test_python_bodies(f: Callable[..., Any], expected: Callable[..., Any]) -> None:
    jitted = jit(f)
    for n in SIZES:
        x = torch.randn(n, 2)
        torch.testing.assert_close(jitted(x), expected(x))
    assert jitted.cache_info().misses == 3


def test_many_sizes_that_are_numbers_are_kept() -> None:
    f = jit(lambda x: x * int(x.shape[0]))
    for _ in range(3):
        for n in range(2, 22):
            assert torch.equal(f(torch.ones(n)), torch.full((n,), float(n)))
    assert f.cache_info().size >= 20
    assert f.cache_info().misses <= 28


def test_an_error_in_the_function_leaves_symbols_possible() -> None:
    fail = True

    def f(x: Tensor) -> Tensor:
        if fail:
            raise ValueError("no")
        return x * 2

    jitted = jit(f)
    with pytest.raises(ValueError, match="no"):
        jitted(torch.ones(3))
    fail = False
    for n in SIZES:
        assert torch.equal(jitted(torch.ones(n)), torch.full((n,), 2.0))
    assert jitted.cache_info().misses == 1


def test_the_reason_of_a_trace_for_other_sizes() -> None:
    f = jit(lambda x: x * 2 if x.shape[0] > 3 else x)
    f(torch.ones(2)), f(torch.ones(5))
    assert "sizes" in f.history.traces[-1].reason


def test_a_static_value_is_dropped_with_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mode:
        pass

    monkeypatch.setattr(jitted, "MAX_ENTRIES", 2)
    weight = torch.ones(3, requires_grad=True)  # for its gradient each size needs its own graph
    f = fxforms.jit(
        lambda x, mode: x.sum() * weight, static_argnums=1, backend="eager", dynamic=True
    )
    modes = [Mode() for _ in range(4)]
    first = weakref.ref(modes[0])
    for mode in modes:
        f(torch.ones(2), mode)
    del mode, modes
    gc.collect()
    assert f.cache_info().size == 2
    assert first() is None
