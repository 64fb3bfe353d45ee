"""``jit`` of what people train, and of what a first reader tried and found wrong."""

from __future__ import annotations

import copy
import gc
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import fxforms.debug
from fxforms import errors, grad, hessian, jacfwd, jit, vmap


def staged(f: Any, **options: Any) -> Any:
    return jit(f, backend="eager", **options)


def test_the_dropout_of_a_recurrent_network_draws() -> None:
    net = nn.GRU(3, 4, num_layers=2, dropout=0.9)
    f = staged(lambda x: net(x)[0])
    x = torch.randn(5, 2, 3)
    assert not torch.equal(f(x), f(x))


def test_a_recurrent_network_is_trained() -> None:
    net, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    staged(lambda x: net(x)[0].sum())(x).backward()
    found = [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
    net.zero_grad()
    net(x)[0].sum().backward()
    for got, p in zip(found, net.parameters()):
        torch.testing.assert_close(got, p.grad)


@pytest.mark.parametrize("derivative", [jacfwd, hessian])
def test_the_laplacian_of_a_network(derivative: Any) -> None:
    w, v, x = torch.randn(8, 2), torch.randn(1, 8), torch.randn(4, 2)

    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(nn.functional.linear(x, w).tanh(), v)

    expected = torch.stack([derivative(f)(row) for row in x])
    torch.testing.assert_close(staged(vmap(derivative(f)))(x), expected)
    torch.testing.assert_close(vmap(staged(derivative(f)))(x), expected)


def test_symbolic_sizes_under_autograd() -> None:
    f = staged(lambda x: x * x.shape[0], dynamic=True)
    for n in (3, 4):
        x = torch.ones(n, requires_grad=True)
        f(x).sum().backward()
        assert torch.equal(x.grad, torch.full((n,), float(n)))


def test_a_size_that_is_returned_is_a_number() -> None:
    f = staged(lambda x: (x.shape[0], x * 1), dynamic=True)
    assert [f(torch.ones(n))[0] for n in (3, 7, 3)] == [3, 7, 3]


def test_a_function_in_c_that_a_module_holds_is_watched() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = torch.sin

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(x)

    net, x = Net(), torch.ones(2)
    f = staged(net)
    assert torch.equal(f(x), x.sin())
    net.act = torch.cos
    assert torch.equal(f(x), x.cos())


@pytest.mark.parametrize("change", [nn.Module.double, nn.Module.half])
def test_a_module_that_changes_its_dtype_is_traced_again(change: Any) -> None:
    net = nn.Embedding(4, 3)
    f = jit(net, compile="wait")
    index = torch.tensor([1, 3])
    assert torch.equal(f(index), net(index))
    change(net)
    assert torch.equal(f(index), net(index))


def test_a_backward_pass_inside_is_told() -> None:
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(errors.TraceError, match="backward"):
        staged(lambda x: (w * x).sum().backward())(torch.ones(2))
    assert w.grad is None


@pytest.mark.parametrize("wrap", [lambda x: {x}, lambda x: types.SimpleNamespace(a=x)])
def test_an_unknown_container_is_told(wrap: Any) -> None:
    with pytest.raises(errors.TraceError, match="no container that jit knows"):
        staged(lambda x: wrap(x * 2))(torch.ones(2))


def test_shapes_inside_a_trace() -> None:
    f = staged(lambda x: x * fxforms.eval_shape(lambda v: v @ v.T, x).shape[0])
    assert torch.equal(f(torch.ones(3, 2)), torch.full((3, 2), 3.0))


def test_printing_without_a_traced_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    w = torch.ones(2)

    def f(x: torch.Tensor) -> torch.Tensor:
        fxforms.debug.print("called with {}", w)
        fxforms.debug.print("again")
        return x * 2

    g = staged(f)
    for _ in range(2):
        g(torch.ones(2))
        assert capsys.readouterr().out == "called with tensor([1., 1.])\nagain\n"
        w.add_(0)


def test_donated_memory_that_is_shared_is_not_written() -> None:
    f = jit(lambda x, y: (x + 1, y * 2), donate_argnums=(0, 1), backend="eager")
    x = torch.zeros(2)
    assert [v.tolist() for v in f(x, x)] == [[1.0, 1.0], [0.0, 0.0]]


def test_positions_that_are_not_given_are_no_others() -> None:
    f = staged(lambda x, y, n=2: x * y * n, static_argnums=2)
    for factor in (1.0, 2.0):
        x = torch.full((2,), factor)
        assert torch.equal(f(x, x), x * x * 2)
        assert torch.equal(f(x, x, 3), x * x * 3)


def test_the_default_device_is_part_of_the_signature() -> None:
    f = staged(lambda x: torch.zeros(2))
    assert f(torch.ones(2)).device.type == "cpu"
    with torch.device("meta"):
        assert f(torch.ones(2, device="cpu")).device.type == "meta"
    assert f(torch.ones(2)).device.type == "cpu"


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


def test_a_module_with_a_cyclic_dict() -> None:
    assert torch.equal(staged(lambda x: x * len(CYCLE))(torch.ones(2)), torch.ones(2))


def test_a_refused_derivative_keeps_no_argument_alive() -> None:
    class Once(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
            raise ValueError("no derivative")

    f = staged(Once.apply)
    x = torch.ones(2, requires_grad=True)
    y = f(x)
    for _ in range(2):
        with pytest.raises(ValueError, match="no derivative"):
            y.sum().backward()
        y = f(x)
    alive = weakref.ref(x)
    del x, y
    gc.collect()
    assert alive() is None


def test_a_captured_tensor_of_a_transform_is_told_where_a_graph_is_asked_for() -> None:
    def f(y: torch.Tensor) -> torch.Tensor:
        fxforms.eval_shape(lambda x: x * y, torch.ones(2))
        return y.sum()

    with pytest.raises(errors.TraceError, match="Pass the tensor as an argument"):
        grad(f)(torch.ones(2))
    assert grad(torch.sin)(torch.tensor(0.0)) == 1.0


class TestBatchNorm:
    """Running statistics are those of eager mode, whatever is done with the output."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda m, x: (m(x), None)[1],
            lambda m, x: m(x) + m(x),
            lambda m, x: m(x).detach() * m(x),
            lambda m, x: m(x).sum(),
        ],
        ids=["unused", "twice", "twice, once detached", "once"],
    )
    @pytest.mark.parametrize(
        "module", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)]
    )
    def test_statistics(self, use: Any, module: nn.Module) -> None:
        x = torch.arange(24.0).reshape(2, 3, 4) ** 0.5
        module = copy.deepcopy(module)
        twin = copy.deepcopy(module)
        f = staged(lambda x: use(module, x))
        for _ in range(3):
            torch.testing.assert_close(f(x), use(twin, x))
            torch.testing.assert_close(module.state_dict(), twin.state_dict())

    def test_a_second_derivative_updates_once(self) -> None:
        x = (torch.arange(15.0).reshape(5, 3) ** 0.5).requires_grad_()
        module = nn.BatchNorm1d(3)
        twin = copy.deepcopy(module)
        found = []
        for f in (
            staged(lambda x: module(x).pow(3).sum()),
            lambda x: twin(x).pow(3).sum(),
        ):
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            found.append(torch.autograd.grad(slope.pow(2).sum(), x)[0])
        torch.testing.assert_close(*found)
        torch.testing.assert_close(module.state_dict(), twin.state_dict())


def test_a_hook_of_a_module_that_is_replaced() -> None:
    layer, x = nn.Linear(3, 1), torch.ones(3)
    plain = layer(x).detach()
    f = staged(lambda x: layer(x).detach())
    handle = layer.register_forward_hook(lambda m, a, o: o * 2)
    torch.testing.assert_close(f(x), plain * 2)
    handle.remove()
    factor = [3.0]
    layer.register_forward_hook(lambda m, a, o: o * factor[0])
    torch.testing.assert_close(f(x), plain * 3)
    factor[0] = 5.0
    torch.testing.assert_close(f(x), plain * 5)


def test_a_backward_hook_of_a_module_that_comes_later() -> None:
    layer = nn.Linear(3, 1)
    f = staged(lambda x: layer(x).sum())
    x = torch.ones(3, requires_grad=True)
    f(x).backward()
    handle = layer.register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    x.grad = None
    f(x).backward()
    torch.testing.assert_close(x.grad, 2 * layer.weight[0].detach())
    handle.remove()
    x.grad = None
    f(x).backward()
    torch.testing.assert_close(x.grad, layer.weight[0].detach())
