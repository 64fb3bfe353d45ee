"""Contexts: many at once, their errors and their end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from distributed.test_autograd import leaf, nested
from distributed.worlds import until

from fxforms import distributed as fd
from fxforms.distributed import current
from fxforms.distributed.context import contexts_of
from fxforms.distributed.current import known_agents
from fxforms.errors import ArgumentError, GradientError, RemoteError

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def test_contexts_in_many_threads() -> None:
    """Each has its own gradients of the same leaves."""
    x = leaf(3)
    agent = current.current_agent()
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
        many = r"3 elements; sum it\. Expected"
        for root, said in (
            (out, many),
            (x.detach(), many),
            (x.sum().detach(), "needs no gradient"),
            (1.0, r"1\.0\. E"),
        ):
            with pytest.raises(ArgumentError, match=said):
                fd.backward(context_id, [root])  # type: ignore[list-item]
        for roots in (out.sum(), None):
            with pytest.raises(ArgumentError, match=r"one root is \[loss\]"):
                fd.backward(context_id, roots)  # type: ignore[arg-type]
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


def test_gradients_are_nobody_elses() -> None:
    """Each can be changed in place, as an optimiser or the clipping of gradients does."""
    x, y = leaf(3), leaf(3)
    with fd.context() as context_id:
        fd.backward(context_id, [(fd.rpc_sync("w1", torch.mul, (x, 1.0)) + (y + x)).sum()])
        found = fd.get_gradients(context_id)
        for grad in found.values():
            grad.mul_(0.5)
        torch.testing.assert_close(found[x], torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(found[y], torch.full((3,), 0.5, dtype=torch.float64))


def test_many_passes_of_one_context_at_once() -> None:
    x, agent = leaf(3), current.current_agent()
    failed: list[BaseException] = []
    with fd.context() as context_id:
        h = fd.rpc_sync("w1", torch.sin, (x,))
        inner = [fd.rpc_sync("w3", torch.cos, (h,)) for _ in range(40)]
        losses = [fd.rpc_sync("w2", torch.mul, (h, other)).sum() for other in inner]

        def run(loss: Tensor) -> None:
            current.bind(agent)
            try:
                fd.backward(context_id, [loss], retain_graph=True)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(loss,)) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        found = fd.get_gradients(context_id)[x]
        passes = max(len(context.passes) for context in everywhere(context_id))
    assert not failed
    (expected,) = torch.autograd.grad(40 * (x.sin() * x.sin().cos()).sum(), x)
    torch.testing.assert_close(found, expected)
    assert passes <= 16


def everywhere(context_id: int) -> list[Any]:
    """The part of a context of each worker of this process."""
    known = [
        contexts_of(agent).get(context_id) for agent in known_agents() if not agent.closed.is_set()
    ]
    assert len(known) == 4
    return known
