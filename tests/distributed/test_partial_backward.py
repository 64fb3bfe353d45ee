"""Passes of plain autograd to given inputs, where a path to them goes over other workers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from distributed.test_autograd import leaf
from distributed.worlds import until
from torch.autograd.graph import get_gradient_edge

from fxforms import distributed as fd
from fxforms.distributed.functions import recvs_after_sends
from fxforms.errors import GradientError, RemoteError

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def grad(loss: Tensor, *inputs: Tensor) -> Any:
    return torch.autograd.grad(loss, inputs)


def grad_allowing_unused(loss: Tensor, *inputs: Tensor) -> Any:
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def grad_to_edges(loss: Tensor, *inputs: Tensor) -> Any:
    return torch.autograd.grad([get_gradient_edge(loss)], [get_gradient_edge(x) for x in inputs])


def backward(loss: Tensor, *inputs: Tensor) -> Any:
    loss.backward(inputs=inputs)


WAYS = [grad, grad_allowing_unused, grad_to_edges, backward]
way = pytest.mark.parametrize("pull", WAYS)
Pull = Callable[..., Any]


def refused(pull: Pull, loss: Tensor, *inputs: Tensor) -> None:
    with pytest.raises(GradientError, match=r"went to another worker.*\.distributed\.backward\("):
        pull(loss, *inputs)
    assert all(x.grad is None for x in inputs if x.is_leaf)


@way
def test_a_path_over_a_worker_beside_a_local_one(pull: Pull) -> None:
    w, v = leaf(3), leaf(3)
    with fd.context() as context_id:
        loss = (fd.rpc_sync("w1", torch.sin, (w,)) * w + v).sum()
        refused(pull, loss, w)
        refused(pull, loss, v, w)
        fd.backward(context_id, [loss])
        found = fd.get_gradients(context_id)
        assert set(found) == {w, v}
        torch.testing.assert_close(found[w], (w.cos() * w + w.sin()).detach())


@way
def test_a_path_over_a_worker_alone(pull: Pull) -> None:
    w = leaf(3)
    with fd.context():
        refused(pull, fd.rpc_sync("w1", torch.sin, (w,)).sum(), w)
        refused(pull, fd.rpc_async("w1", torch.sin, (w * 2,)).wait().sum(), w)


@way
def test_an_input_between(pull: Pull) -> None:
    """No leaf; and the gradient of it is asked for where it was sent itself, or something of it."""
    w = leaf(3)
    with fd.context():
        h = w.exp()
        refused(pull, (fd.rpc_sync("w1", torch.sin, (h,)) + h).sum(), h)
        refused(pull, (fd.rpc_sync("w1", torch.sin, (h.cos(),)) + h).sum(), h)
        refused(pull, (fd.rpc_sync("w1", torch.sin, (h,)) + h).sum(), w)


@way
def test_a_path_over_several_calls(pull: Pull) -> None:
    w = leaf(3)
    with fd.context():
        inner = fd.rpc_sync("w1", torch.sin, (w,))
        refused(pull, (fd.rpc_sync("w2", torch.cos, (inner,)) + w).sum(), w)
        nested = fd.rpc_sync("w1", af.back_and_forth, (["w2", "w0", "w3"], w))
        refused(pull, (nested + w).sum(), w)


@way
def test_a_value_that_a_worker_kept(pull: Pull) -> None:
    """Sent in an earlier call of the context, or fetched by the worker."""
    w, x = leaf(3), torch.ones(3, dtype=torch.float64)
    with fd.context():
        kept = fd.remote("w1", torch.sin, (w,))
        refused(pull, (kept.to_here() + w).sum(), w)
        refused(pull, (fd.rpc_sync("w2", af.rref_product, (kept, x)) + w).sum(), w)
        mine = fd.RRef(w * 2)
        refused(pull, (fd.rpc_sync("w2", af.rref_product, (mine, x)) + w).sum(), w)


@way
def test_after_the_context(pull: Pull) -> None:
    w = leaf(3)
    with fd.context():
        out = fd.rpc_sync("w1", torch.sin, (w,))
        late = fd.rpc_async("w1", af.slow_sine, (w,))
    refused(pull, (out + w).sum(), w)
    refused(pull, (late.wait() + w).sum(), w)


@way
def test_inside_a_remote_function(pull: Pull) -> None:
    w = leaf(3)
    with fd.context(), pytest.raises(RemoteError, match=r"went to another worker"):
        fd.rpc_sync("w1", partial, (WAYS.index(pull), w))


@fd.register
def partial(number: int, x: Tensor) -> Tensor:
    """A gradient of what this worker sent, and got back from the one that calls it."""
    w = leaf(3)
    loss = fd.rpc_sync("w0", rf.echo, (w * x,)).sum() + w.sum()
    WAYS[number](loss, w)
    return x


def test_what_no_worker_has_part_in_is_right() -> None:
    w, v = leaf(3), leaf(3)
    with fd.context():
        h = (v * 2).exp()
        first, second = fd.rpc_sync("w1", torch.sin, (w,)), fd.rpc_sync("w2", torch.cos, (h,))
        one, two = torch.unbind(torch.stack([w, v]) * 3)
        third = fd.rpc_sync("w3", torch.sin, (one,))
        u = leaf(3)
        after = (first * u).tanh()
        cases = [
            ((w * w).sum(), w, 2 * w),
            ((first * second).sum(), first, second),
            ((first * second).sum(), second, first),
            ((third * two).sum(), two, third),
            ((first * u * second).sum(), u, first * second),
            ((after * first).sum(), after, first),
        ]
        for loss, x, expected in cases:
            (found,) = torch.autograd.grad(loss, x, retain_graph=True)
            torch.testing.assert_close(found, expected.detach())
        (after * first).sum().backward(inputs=[u])
    torch.testing.assert_close(u.grad, ((1 - after**2) * first**2).detach())
    (found,) = torch.autograd.grad((first * u).sum(), u)
    torch.testing.assert_close(found, first.detach())


def test_torch_says_what_it_always_does() -> None:
    """Of inputs that need no gradient or are not used, inside a context too."""
    w, v = leaf(3), leaf(3)
    with fd.context():
        out = fd.rpc_sync("w1", torch.sin, (w,))
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.autograd.grad(out.detach().sum(), w)
        with pytest.raises(RuntimeError, match="to not have been used"):
            torch.autograd.grad(out.sum(), v)
        with pytest.raises(RuntimeError, match="does not require"):
            torch.autograd.grad(out.sum(), torch.ones(3))


def test_what_a_context_recorded_goes_with_it() -> None:
    """At once, on both sides, without the garbage collector; however many calls there were."""
    w = leaf(3)
    assert until(lambda: not gc.collect() and not recvs_after_sends)
    gc.disable()
    try:
        for passes in (0, 1):
            with fd.context() as context_id:
                x = w
                for _ in range(1500):
                    x = fd.rpc_sync("w1", torch.add, (x, 1.0))
                assert len(recvs_after_sends) > 1500
                for _ in range(passes):
                    fd.backward(context_id, [x.sum()])
            del x
            assert until(lambda: not recvs_after_sends)
    finally:
        gc.enable()


@way
def test_a_value_that_was_made_outside_of_the_context(pull: Pull) -> None:
    """By ``remote``, or owned here; used outside of every context, and inside a later one."""
    w, x = leaf(3), torch.ones(3, dtype=torch.float64)
    kept, mine = fd.remote("w1", torch.sin, (w * 1,)), fd.RRef(w * 2)
    on = fd.remote("w2", rf.to_here, (fd.remote("w1", torch.sin, (w * 1,)),))
    calls = [
        kept.to_here,
        on.to_here,
        lambda: fd.rpc_sync("w2", af.rref_product, (kept, x)),
        lambda: fd.rpc_sync("w2", af.rref_product, (mine, x)),
    ]
    for call in calls:
        refused(pull, (call() + w).sum(), w)
        with fd.context():
            refused(pull, (call() + w).sum(), w)
    with fd.context():
        early = fd.remote("w1", torch.sin, (w,))
    refused(pull, (early.to_here() + w).sum(), w)


def test_a_fetched_parameter_is_a_constant() -> None:
    """Of another worker; no tensor of this one went into it."""
    x, far = leaf(3), fd.remote("w1", af.weight)
    out = (far.to_here() * x).sum()
    (found,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(found, af.WEIGHT.detach())
