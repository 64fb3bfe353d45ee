"""Steps of training inside jit: what reaches parameters, and what an error leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxforms
from fxforms.errors import TraceError

X = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]])


def jit(f: Callable[..., Any]) -> Any:
    return fxforms.jit(f, backend="eager")


def is_real(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter)


def train(net: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    optimiser.zero_grad()
    net(X).pow(2).sum().backward()
    optimiser.step()


class TestAfterAnError:
    @pytest.mark.parametrize("steps", [0, 1])
    def test_the_state_of_an_optimiser(self, steps: int) -> None:
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(steps):
            train(net, optimiser)
        optimiser.zero_grad()
        plain, copied = copy.deepcopy((net, optimiser))
        with pytest.raises(TraceError):  # Adam asks for the value of its step
            jit(lambda x: train(net, optimiser))(X)
        assert len(optimiser.state) == len(copied.state)
        assert net.weight.grad is None
        for _ in range(2):
            train(net, optimiser)
            train(plain, copied)
        for p, q in zip(net.parameters(), plain.parameters()):
            assert torch.equal(p, q)
            assert all(map(is_real, optimiser.state[p].values()))

    @pytest.mark.filterwarnings("ignore:Using backward")
    @pytest.mark.parametrize("before", [None, torch.ones(3)])
    def test_a_grad(self, before: Tensor | None) -> None:
        w = torch.ones(3, requires_grad=True)
        w.grad = before

        def step(x: Tensor) -> None:
            (w * x).sum().backward(create_graph=True)
            raise KeyError

        with pytest.raises(KeyError):
            jit(step)(X)
        assert w.grad is before

    def test_a_grad_that_is_set_anew_after_backward(self) -> None:
        w = torch.ones(3, requires_grad=True)

        def step(x: Tensor) -> None:
            (w * x).sum().backward()
            w.grad = None

        with pytest.raises(TraceError, match=r"sets \.grad"):
            jit(step)(X)
        assert w.grad is None

    def test_a_lazy_module_can_still_be_run(self) -> None:
        net = nn.LazyLinear(2)
        with pytest.raises(TraceError):
            jit(net)(X)
        assert net(X).shape == (2, 2)
        assert is_real(net.weight)

    def test_new_containers_with_traced_tensors_are_taken_away(self) -> None:
        class Model:
            cache: dict[str, Any]

        model = Model()
        model.cache = {"kept": 1}

        def f(x: Tensor) -> Tensor:
            model.cache["sums"] = {"first": [x.sum()], "pair": (x, 1)}
            return x

        with pytest.raises(TraceError, match="'sums'"):
            jit(f)(X)
        assert model.cache == {"kept": 1}


class TestInPlace:
    @pytest.mark.parametrize("through_data", [True, False])
    def test_an_update_of_a_captured_parameter(self, through_data: bool) -> None:
        w = nn.Parameter(torch.ones(3))

        def update(x: Tensor) -> Tensor:
            with torch.no_grad():
                (w.data if through_data else w).sub_(x)
            return (w * x).sum()

        step, x = jit(update), X[0]
        for count in (1, 2):
            out = step(x)
            assert torch.allclose(w, 1 - count * x)
            assert torch.allclose(out, ((1 - count * x) * x).sum())
        out.backward()
        assert torch.allclose(w.grad, x)

    def test_a_step_of_an_optimiser_with_gradients_in_place(self) -> None:
        w = torch.ones(3, requires_grad=True)
        w.grad = torch.zeros(3)
        optimiser = torch.optim.SGD([w], lr=0.5)

        def update(x: Tensor) -> None:
            optimiser.zero_grad(set_to_none=False)
            (w * x).sum().backward()
            optimiser.step()

        step = jit(update)
        for count in (1, 2):
            step(X[0])
            assert torch.allclose(w, 1 - 0.5 * count * X[0])
            assert torch.equal(w.grad, X[0])
        w.grad = None  # there is no tensor left to add to
        with pytest.raises(TraceError, match=r"\.backward\(\) inside"):
            step(X[0])
        assert w.grad is None

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_settings_and_state_of_an_optimiser_that_change(self, momentum: float) -> None:
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.5, momentum=momentum)
        train(net, optimiser)  # makes the state
        plain, copied = copy.deepcopy((net, optimiser))
        for p, q in zip(net.parameters(), plain.parameters()):
            q.grad = p.grad
        step = jit(lambda: optimiser.step())
        for rate in (0.5, 0.5, 0.25):
            for each, run in ((optimiser, step), (copied, copied.step)):
                each.param_groups[0]["lr"] = rate
                run()
        copied.load_state_dict(copied.state_dict())
        optimiser.load_state_dict(copy.deepcopy(optimiser.state_dict()))
        step()
        copied.step()
        for p, q in zip(net.parameters(), plain.parameters()):
            assert torch.allclose(p, q)
        for p, q in zip(optimiser.state.values(), copied.state.values()):
            assert momentum == 0 or torch.allclose(p["momentum_buffer"], q["momentum_buffer"])

    def test_backward_of_an_argument_is_refused(self) -> None:
        x = X.clone().requires_grad_()
        with pytest.raises(TraceError, match=r"\.backward\(\) inside"):
            jit(lambda x: x.pow(2).sum().backward())(x)
        assert x.grad is None

    def test_a_recorded_write_to_a_captured_result(self) -> None:
        w = torch.ones(3, requires_grad=True)
        v = 3 * w
        out = jit(lambda x: v.mul_(x).sum())(X[0])
        assert torch.allclose(v, 3 * X[0])
        out.backward()
        assert torch.allclose(w.grad, 3 * X[0])


class TestForwardOfOneModule:
    def test_set_after_the_trace(self) -> None:
        net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        f = jit(lambda x: net(x))
        assert torch.allclose(f(X), net(X))
        net[1].forward = lambda x: 2 * x  # type: ignore[method-assign]
        assert torch.allclose(f(X), 2 * net[0](X))
        del net[1].forward
        assert torch.allclose(f(X), torch.tanh(net[0](X)))

    def test_what_it_reads_is_compared(self) -> None:
        net, scale = nn.Identity(), 2.0
        net.forward = lambda x: scale * x  # type: ignore[method-assign]
        f = jit(lambda x: net(x))
        assert torch.equal(f(X), 2 * X)
        scale = 3.0
        assert torch.equal(f(X), 3 * X)
