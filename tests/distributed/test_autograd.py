"""Distributed autograd, against plain autograd in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from distributed.worlds import until, world

from fxforms import distributed as fd
from fxforms.distributed import current
from fxforms.distributed.context import contexts_of, current_context
from fxforms.distributed.current import known_agents
from fxforms.errors import ArgumentError, GradientError, RemoteError

Tensor = torch.Tensor


@pytest.fixture(scope="module", autouse=True)
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with world("local", 4, tmp_path_factory.mktemp("world")):
        yield


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    yield
    assert current_context() is None
    assert until(lambda: not fd.debug_info()["contexts"])
    assert until(lambda: not fd.debug_info()["residuals"])


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


def test_contexts_in_many_threads() -> None:
    """Each has its own gradients of the same leaves."""
    x = leaf(3)
    agent = known_agents()[0]
    failed: list[BaseException] = []

    def run(scale: int) -> None:
        current.bind(agent)  # the thread makes its calls as worker 0
        try:
            for _ in range(10):
                with fd.context() as context_id:
                    out = fd.rpc_sync(f"w{1 + scale % 3}", af.back_and_forth, (["w2", "w0"], x))
                    fd.backward(context_id, [(out * scale).sum()])
                    ids.add(context_id)
                    torch.testing.assert_close(
                        fd.get_gradients(context_id)[x], scale * expected, rtol=1e-12, atol=0
                    )
        except BaseException as error:
            failed.append(error)

    (expected,) = torch.autograd.grad(nested(["w2", "w0"], x).sum(), x)
    ids: set[int] = set()
    threads = [threading.Thread(target=run, args=(scale,)) for scale in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed
    assert len(ids) == 60


def test_ids_are_unique_across_workers() -> None:
    with fd.context() as first:
        pass
    with fd.context() as second:
        pass
    assert first >> 48 == second >> 48 == 0
    assert second > first
    assert fd.rpc_sync("w3", begin_context) >> 48 == 3


@fd.register
def begin_context() -> int:
    """A context of the worker that runs this."""
    with fd.context() as context_id:
        return context_id


def test_a_plain_backward_inside_a_context_is_refused() -> None:
    x = leaf(3)
    with fd.context():
        loss = fd.rpc_sync("w1", torch.sin, (x,)).sum()
        with pytest.raises(GradientError, match=r"write fxforms.distributed.backward\(context_id"):
            loss.backward()
        with pytest.raises(RemoteError, match="goes no further"):
            fd.rpc_sync("w1", af.plain_backward, (x,))
    assert x.grad is None


def test_a_plain_backward_of_local_work_inside_a_context_is_right() -> None:
    x = leaf(3)
    with fd.context():
        (x * 2).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0, dtype=torch.float64))


def test_a_plain_backward_outside_of_a_context_is_right() -> None:
    x, y = leaf(3), leaf(3)
    fd.rpc_sync("w1", af.smooth, (x, y)).sum().backward()
    fd.rpc_async("w2", af.smooth, (x, y)).wait().sum().backward()
    expected = torch.autograd.grad(2 * af.smooth(x, y).sum(), [x, y])
    torch.testing.assert_close((x.grad, y.grad), expected)


def test_a_parameter_that_plain_autograd_would_miss_is_an_error() -> None:
    x = leaf(3)
    for given in (x, x.detach()):
        out = fd.rpc_sync("w1", af.weighted, (given,))
        with pytest.raises(GradientError, match=r"inside fxforms.distributed.context\(\)"):
            out.sum().backward()
    for out in (fd.remote("w1", torch.sin, (x,)).to_here(), fd.remote("w2", af.weight).to_here()):
        with pytest.raises(GradientError, match="outside of a distributed autograd context"):
            out.sum().backward()
    with torch.no_grad():
        assert not fd.rpc_sync("w1", af.weighted, (x,)).requires_grad


def test_wrong_uses() -> None:
    x = leaf(3)
    with pytest.raises(ArgumentError, match="12345 is not known on worker 'w0'"):
        fd.backward(12345, [x.sum()])
    with pytest.raises(ArgumentError, match="not known"):
        fd.get_gradients(12345)
    with fd.context() as context_id:
        out = fd.rpc_sync("w1", torch.sin, (x,))
        for root, said in ((out, "shape"), (x.detach().sum(), "needs no gradient"), (1.0, "1.0")):
            with pytest.raises(ArgumentError, match=said):
                fd.backward(context_id, [root])  # type: ignore[list-item]
        with pytest.raises(ArgumentError, match="mode='slow'"):
            fd.backward(context_id, [out.sum()], mode="slow")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="do not nest"), fd.context():
            pass
    with pytest.raises(ArgumentError, match="was released"):
        fd.backward(context_id, [out.sum()])
    with fd.context() as other, pytest.raises(GradientError, match=f"context {context_id}"):
        fd.backward(other, [out.sum()])


def raise_after(value: Tensor) -> None:
    raise ZeroDivisionError(value)


def test_an_error_releases_the_context_everywhere() -> None:
    x = leaf(3)
    with pytest.raises(ZeroDivisionError), fd.context():
        raise_after(fd.rpc_sync("w1", af.back_and_forth, (["w2", "w3"], x)))
    assert until(lambda: not any(len(contexts_of(agent)) for agent in known_agents()))


def test_a_call_that_fails_leaves_the_others() -> None:
    x = leaf(3)
    with fd.context() as context_id:
        shared = fd.rpc_sync("w1", torch.sin, (x,))
        for call in (fd.rpc_sync, lambda *args: fd.rpc_async(*args).wait()):
            with pytest.raises(ValueError, match="no"):
                call("w2", rf.fail, ("value", "no"))
        with pytest.raises(RemoteError):
            fd.rpc_sync("w2", torch.mul, (shared, torch.ones(7)))
        fd.backward(context_id, [shared.sum()], mode="fast")
        torch.testing.assert_close(fd.get_gradients(context_id)[x], x.detach().cos())


@pytest.mark.parametrize("through", [False, True])
def test_an_error_in_backward_keeps_type_text_and_traceback(through: bool) -> None:
    x = leaf(3)
    with fd.context() as context_id:
        out = fd.rpc_sync("w1", af.refuse_backward, (x,))
        if through:
            out = fd.rpc_sync("w2", torch.sin, (out,))
        with pytest.raises(KeyError, match="no gradient today") as caught:
            fd.backward(context_id, [out.sum()])
    error: Any = caught.value
    assert isinstance(error, RemoteError)
    assert error.worker == "w1"
    assert error.remote_type == "builtins:KeyError"
    assert "in backward" in error.remote_traceback
    assert "raise KeyError" in error.remote_traceback


def test_a_complex_and_a_sparse_gradient() -> None:
    z = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    table = leaf(5, 2)
    rows = torch.tensor([1, 3, 1])
    with fd.context() as context_id:
        picked = torch.nn.functional.embedding(
            rows, fd.rpc_sync("w1", torch.sin, (table,)), sparse=True
        )
        loss = fd.rpc_sync("w1", torch.abs, (z,)).sum() + picked.sum()
        fd.backward(context_id, [loss])
        found = fd.get_gradients(context_id)
    local = torch.nn.functional.embedding(rows, table.sin(), sparse=False).sum()
    expected = torch.autograd.grad(z.abs().sum() + local, [z, table])
    torch.testing.assert_close([found[z], found[table]], list(expected))


def test_many_passes_leave_nothing() -> None:
    x = leaf(3)
    for _ in range(200):
        with fd.context() as context_id:
            out = fd.rpc_sync("w1", af.back_and_forth, (["w2"], x))
            fd.backward(context_id, [out.sum()])
