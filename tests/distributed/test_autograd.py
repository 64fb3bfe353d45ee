"""Distributed autograd, against plain autograd in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af

from fxforms import distributed as fd
from fxforms.errors import GradientError

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def check(
    loss: Callable[[Any], Tensor], leaves: list[Tensor], mode: Any = "smart", rtol: float = 0
) -> None:
    """The gradients of ``loss(call)`` over workers equal those with plain calls."""
    expected = torch.autograd.grad(loss(lambda to, fn, args: fn(*args)), leaves, allow_unused=True)
    with fd.context() as context_id:
        fd.backward(context_id, [loss(fd.rpc_sync)], mode=mode)
        found = fd.get_gradients(context_id)
    for x, grad in zip(leaves, expected):
        if grad is None:
            assert x not in found
        else:
            torch.testing.assert_close(found[x], grad, rtol=rtol, atol=0)
        assert x.grad is None


@pytest.mark.parametrize("mode", ["smart", "fast"])
@pytest.mark.parametrize("to", ["w1", "w0"])
def test_one_call(to: str, mode: str) -> None:
    x, y = leaf(3), leaf(3)
    check(lambda call: (call(to, af.smooth, (x, y)) * y).sum(), [x, y], mode)


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_an_operator_and_a_tensor_that_needs_no_gradient(mode: str) -> None:
    x, y, z = leaf(2, 3), leaf(3), torch.randn(3, dtype=torch.float64)
    check(
        lambda call: call("w2", torch.mul, (call("w1", torch.add, (x, z)), y)).sum(), [x, y], mode
    )


def nested(path: list[str], x: Tensor) -> Tensor:
    here = (x * 1.5).sin()
    if path:
        here = nested(path[1:], here) + here
    return here.cos() * x


@pytest.mark.parametrize(
    "path", [["w1"], ["w1", "w2", "w3"], ["w1", "w0", "w1"], ["w1", "w2", "w1", "w0", "w3"]]
)
def test_nested_calls_and_calls_back(path: list[str]) -> None:
    x = leaf(4)
    (expected,) = torch.autograd.grad(nested(path, x).sum(), x)
    with fd.context() as context_id:
        loss = fd.rpc_sync("w0", af.back_and_forth, (path, x)).sum()
        fd.backward(context_id, [loss])
        torch.testing.assert_close(fd.get_gradients(context_id)[x], expected, rtol=1e-12, atol=0)


def rounds(call: Any, x: Tensor, count: int) -> Tensor:
    """A chain of ``count`` calls round the workers."""
    for i in range(count):
        x = call(f"w{i % 4}", af.smooth, (x, x.cos()))
        x = x / (1 + x * x)
    return x.sum()


def all_to_all(call: Any, xs: list[Tensor], count: int) -> Tensor:
    """Layers in which each worker gets what all gave before, by ``count`` calls.

    All is piecewise linear with factors 1 and -1, so that gradients are whole numbers below 2**51
    and exact in any order of the sums.
    """
    for layer in range(count // 4):
        outs = [call(f"w{i}", af.bent, (xs[i], xs[(i + layer) % 4])) for i in range(4)]
        xs = [outs[i][0] - outs[(i + 1) % 4][1] for i in range(4)]
    return sum(x.sum() for x in xs)  # type: ignore[return-value]


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_a_chain_of_100_calls(mode: str) -> None:
    x = leaf(5)
    check(lambda call: rounds(call, x, 100), [x], mode)


@pytest.mark.parametrize("mode", ["smart", "fast"])
def test_100_calls_from_all_to_all(mode: str) -> None:
    xs = [torch.randint(-8, 9, (3,)).double().requires_grad_() for _ in range(4)]
    check(lambda call: all_to_all(call, xs, 100), xs, mode)


def test_a_result_that_is_not_used_costs_no_message_and_no_wait() -> None:
    """Its send function shares nodes with one that is used, so gradients meet there."""
    x, y = leaf(3), leaf(3)

    def loss(call: Any, unused: int) -> Tensor:
        shared = call("w1", af.smooth, (x, y)) * 2
        for _ in range(unused):
            call("w2", torch.exp, (shared,))
        return call("w3", torch.sin, (shared,)).sum()

    check(lambda call: loss(call, 3), [x, y])
    with fd.context() as context_id, pytest.raises(GradientError, match='Use mode="smart"'):
        fd.backward(context_id, [loss(fd.rpc_sync, 1)], mode="fast")


def unused_deep(call: Any, x: Tensor) -> Tensor:
    """What is not used is also deep inside other workers."""
    a = call("w1", af.smooth, (x, x.cos()))
    b = call("w2", af.smooth, (a, a.sin()))
    call("w3", af.smooth, (b, a))
    c = call("w1", af.smooth, (b, x))
    call("w2", torch.exp, (c,))
    call("w1", torch.exp, (a,))
    return call("w2", torch.mul, (c, b)).sum()


def test_results_that_are_not_used_on_many_workers() -> None:
    x = leaf(3)
    check(lambda call: unused_deep(call, x), [x])


def test_a_result_not_used_of_a_worker_that_is_reached_later() -> None:
    """The pass stands still here first, and comes to the kept value when it goes on."""
    x, y = leaf(3), leaf(3)
    (gx, gy) = torch.autograd.grad(af.smooth(x, y).sin().sin().sum(), [x, y])
    with fd.context() as context_id:
        kept = fd.remote("w2", af.smooth, (x, y))
        fd.rpc_sync("w3", af.rref_product, (kept, y))
        here = kept.to_here().sin()
        fd.rpc_sync("w3", torch.exp, (here,))
        loss = fd.rpc_sync("w1", torch.sin, (here,)).sum()
        fd.backward(context_id, [loss])
        found = fd.get_gradients(context_id)
    torch.testing.assert_close([found[x], found[y]], [gx, gy], rtol=0, atol=0)


def test_an_rref_as_argument_and_as_result() -> None:
    x, y = leaf(3), leaf(3)
    (gx, gy) = torch.autograd.grad((af.smooth(x, y) * y.sin()).sum(), [x, y])
    with fd.context() as context_id:
        rref = fd.remote("w1", af.smooth, (x, y))
        out = fd.rpc_sync("w2", af.rref_product, (rref, y))
        local = fd.remote("w3", torch.mul, (out, torch.ones(3))).to_here()
        fd.backward(context_id, [local.sum()])
        found = fd.get_gradients(context_id)
        torch.testing.assert_close(found[x], gx, rtol=0, atol=0)
        torch.testing.assert_close(found[y], gy, rtol=0, atol=0)


def test_an_rref_of_a_leaf_of_this_worker() -> None:
    x, y = leaf(3), leaf(3)
    with fd.context() as context_id:
        out = fd.rpc_sync("w1", af.rref_product, (fd.RRef(x), y))
        fd.backward(context_id, [out.sum()])
        torch.testing.assert_close(fd.get_gradients(context_id)[x], y.detach().sin())


def test_futures_of_one_context() -> None:
    xs = [leaf(3) for _ in range(8)]
    with fd.context() as context_id:
        futures = [fd.rpc_async(f"w{i % 4}", torch.sin, (x,)) for i, x in enumerate(xs)]
        fd.backward(context_id, [sum(f.wait().sum() for f in futures)])  # type: ignore[list-item]
        found = fd.get_gradients(context_id)
    for x in xs:
        torch.testing.assert_close(found[x], x.detach().cos())


def test_gradients_accumulate_in_a_context_and_not_across() -> None:
    x = leaf(3)
    for _ in range(2):
        with fd.context() as context_id:
            assert fd.get_gradients(context_id) == {}
            loss = fd.rpc_sync("w1", torch.sin, (x,)).sum()
            for count in (1, 2, 3):
                fd.backward(context_id, [loss], retain_graph=count < 3)
                torch.testing.assert_close(
                    fd.get_gradients(context_id)[x], count * x.detach().cos()
                )
            with pytest.raises(RuntimeError, match="second time"):
                fd.backward(context_id, [loss])


def test_several_roots() -> None:
    x = leaf(3)
    with fd.context() as context_id:
        out = fd.rpc_sync("w1", af.apart, (x, x))
        fd.backward(context_id, [out[0].sum(), out[1].sum(), (x * x).sum()])
        found = fd.get_gradients(context_id)[x]
    a, b = af.apart(x, x)
    (expected,) = torch.autograd.grad(a.sum() + b.sum() + (x * x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_parameter_of_another_worker() -> None:
    x = leaf(3)
    with fd.context() as context_id:
        fd.backward(context_id, [fd.rpc_sync("w2", af.weighted, (x,)).sum()])
        torch.testing.assert_close(fd.rpc_sync("w2", af.weight_gradient, (context_id,)), x.detach())
        assert af.WEIGHT not in fd.get_gradients(context_id)
