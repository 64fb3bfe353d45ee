"""What a jitted function reads besides its arguments: tensors by reference, values compared."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fxforms

X = torch.tensor([0.5, -1.0, 2.0])
SCALE = 2.0
WEIGHT = torch.ones(3)
TABLE: dict[str, Any] = {"scale": 2.0}


def jit(f: Callable[..., Any]) -> Any:
    return fxforms.jit(f, backend="eager")


def traces(jitted: Any) -> int:
    return int(jitted.cache_info().misses)


def scaled(x: Tensor) -> Tensor:
    return x * SCALE


class TestTensors:
    def test_a_change_in_place_is_seen_without_a_trace(self) -> None:
        w = torch.ones(3)
        f = jit(lambda x: x * w)
        assert torch.equal(f(X), X)
        w.mul_(3)
        assert torch.equal(f(X), 3 * X)
        w.data = torch.full((3,), 4.0)
        assert torch.equal(f(X), 4 * X)
        assert traces(f) == 1

    def test_a_variable_bound_to_a_new_tensor_is_seen(self) -> None:
        w = torch.ones(3)
        f = jit(lambda x: x * w)
        f(X)
        w = torch.full((3,), 5.0)
        assert torch.equal(f(X), 5 * X)
        w = torch.full((1,), 6.0)
        assert torch.equal(f(X), 6 * X)

    def test_a_global_bound_to_a_new_tensor_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        f = jit(lambda x: x * WEIGHT)
        assert torch.equal(f(X), X)
        monkeypatch.setitem(globals(), "WEIGHT", torch.full((3,), 2.0))
        assert torch.equal(f(X), 2 * X)

    def test_a_captured_tensor_that_changes_shape_in_place(self) -> None:
        w = torch.ones(3)
        f = jit(lambda x: x * w)
        f(X)
        w.resize_(1).fill_(2.0)
        assert torch.equal(f(X), 2 * X)

    def test_requires_grad_set_after_the_trace(self) -> None:
        w = torch.ones(3)
        f = jit(lambda x: (x * w).sum())
        f(X)
        w.requires_grad_()
        f(X).backward()
        assert torch.equal(w.grad, X)

    def test_an_optimiser_step_and_load_state_dict(self) -> None:
        model = torch.nn.Linear(3, 1)
        f = jit(model)
        first = f(X)
        kept = {name: x.clone() for name, x in model.state_dict().items()}
        optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
        f(X).backward()
        optimiser.step()
        expected = first - 0.5 * (X.square().sum() + 1)
        torch.testing.assert_close(f(X), expected)
        model.load_state_dict(kept)
        assert torch.equal(f(X), first)
        assert traces(f) == 1

    def test_gradients_reach_captured_tensors(self) -> None:
        w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        f = jit(lambda x: (x * w.sin()).sum())
        for _ in range(2):
            w.grad = None
            f(X).backward()
            torch.testing.assert_close(w.grad, X * w.detach().cos())
        (first,) = torch.autograd.grad(f(X), w, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), w)
        torch.testing.assert_close(second, -X * w.detach().sin())

    def test_in_a_list_a_dict_and_an_object(self) -> None:
        ws = [torch.ones(3), {"w": torch.ones(3)}]
        holder = types.SimpleNamespace(w=torch.ones(3))
        f = jit(lambda x: x * ws[0] * ws[1]["w"] * holder.w)
        assert torch.equal(f(X), X)
        ws[0] = 2 * torch.ones(3)
        assert torch.equal(f(X), 2 * X)
        ws[1]["w"] = 3 * torch.ones(3)
        assert torch.equal(f(X), 6 * X)
        holder.w = 5 * torch.ones(3)
        assert torch.equal(f(X), 30 * X)
        ws.append(1)
        assert torch.equal(f(X), 30 * X)


class TestValues:
    def test_a_closed_over_number(self) -> None:
        scale: Any = 2.0
        f = jit(lambda x: x * scale)
        assert torch.equal(f(X), 2 * X)
        scale = 3.0
        assert torch.equal(f(X), 3 * X)
        scale = 2.0  # known from before
        assert torch.equal(f(X), 2 * X)
        assert traces(f) == 2

    def test_int_float_and_bool_differ(self) -> None:
        x = torch.tensor([1, 2])
        scale: Any = 2
        f = jit(lambda x: x * scale)
        assert f(x).dtype == torch.int64
        scale = 2.0
        assert f(x).dtype == torch.float32
        scale = True
        assert torch.equal(f(x), x)

    def test_zero_and_minus_zero_differ(self) -> None:
        zero = 0.0
        f = jit(lambda x: torch.copysign(x, torch.full((), zero)))
        assert torch.equal(f(X), X.abs())
        zero = -0.0
        assert torch.equal(f(X), -X.abs())

    def test_a_global(self, monkeypatch: pytest.MonkeyPatch) -> None:
        f = jit(lambda x: x * SCALE)
        assert torch.equal(f(X), 2 * X)
        monkeypatch.setitem(globals(), "SCALE", 3.0)
        assert torch.equal(f(X), 3 * X)

    def test_a_function_that_is_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        f = jit(lambda x: scaled(x))
        assert torch.equal(f(X), 2 * X)
        monkeypatch.setitem(globals(), "SCALE", 3.0)
        assert torch.equal(f(X), 3 * X)
        monkeypatch.setitem(globals(), "scaled", lambda x: x)
        assert torch.equal(f(X), X)

    def test_a_nested_function(self) -> None:
        scale = 2.0

        def f(x: Tensor) -> Tensor:
            def inner(y: Tensor) -> Tensor:
                return y * scale

            return torch.stack([inner(y) for y in x])

        jitted = jit(f)
        assert torch.equal(jitted(X), 2 * X)
        scale = 3.0
        assert torch.equal(jitted(X), 3 * X)

    @pytest.mark.parametrize(
        "make", [dict, lambda scale: types.SimpleNamespace(**{"scale": scale})]
    )
    def test_a_config(self, make: Any) -> None:
        config = make(scale=2.0)

        def f(x: Tensor) -> Tensor:
            return x * (config["scale"] if isinstance(config, dict) else config.scale)

        jitted = jit(f)
        assert torch.equal(jitted(X), 2 * X)
        if isinstance(config, dict):
            config["scale"] = 3.0
        else:
            config.scale = 3.0
        assert torch.equal(jitted(X), 3 * X)

    def test_an_attribute_of_an_attribute(self) -> None:
        config = types.SimpleNamespace(model=types.SimpleNamespace(scale=2.0))
        f = jit(lambda x: x * config.model.scale)
        assert torch.equal(f(X), 2 * X)
        config.model.scale = 3.0
        assert torch.equal(f(X), 3 * X)
        config.model = types.SimpleNamespace(scale=4.0)
        assert torch.equal(f(X), 4 * X)

    def test_a_numpy_array(self) -> None:
        scale = np.array([1.0, 2.0, 3.0], dtype=np.float32)
        f = jit(lambda x: x * torch.from_numpy(scale))
        assert torch.equal(f(X), X * torch.tensor([1.0, 2.0, 3.0]))
        scale[:] = 2
        assert torch.equal(f(X), 2 * X)

    def test_a_long_list(self) -> None:
        scales = [2.0] * 100
        f = jit(lambda x: x * scales[0])
        assert torch.equal(f(X), 2 * X)
        scales[0] = 3.0
        assert torch.equal(f(X), 3 * X)

    def test_a_variable_that_is_deleted(self) -> None:
        holder = types.SimpleNamespace(scale=2.0)
        f = jit(lambda x: x * getattr(holder, "scale", 1.0))
        assert torch.equal(f(X), 2 * X)
        del holder.scale
        assert torch.equal(f(X), X)
