"""Calls that ran out of time: what their answers hold is released, here and on other workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from distributed.worlds import until, world

from fxforms import distributed as fd
from fxforms.errors import RpcTimeoutError

KINDS = ("owned_rrefs", "used_rrefs", "pending_forks", "contexts", "residuals")


@pytest.fixture(scope="module", params=["local", "process_group"])
def agent(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    with world(request.param, 3, tmp_path_factory.mktemp("world")):
        yield request.param


def left() -> list[int]:
    gc.collect()
    counts = [fd.debug_info(), *(fd.rpc_sync(name, rf.held) for name in ("w1", "w2"))]
    return [each.get(kind, 0) for each in counts for kind in KINDS]


def leaf() -> torch.Tensor:
    return torch.randn(3, dtype=torch.float64, requires_grad=True)


def call_that_makes_an_rref() -> None:
    fd.rpc_sync("w1", af.make_rref_late, (0.5,), timeout=0.1)


def call_that_calls_on_in_a_context() -> None:
    with fd.context():
        fd.rpc_sync("w1", af.relay_late, ("w2", leaf(), 0.5), timeout=0.1)


def call_that_keeps_a_graph() -> None:
    fd.remote_function("w1", af.slow_sine, timeout=0.1)(leaf())


def async_call_that_keeps_a_graph() -> None:
    fd.rpc_async("w1", af.slow_sine, (leaf(),), timeout=0.1).wait()


@pytest.mark.parametrize(
    "call",
    [
        call_that_makes_an_rref,
        call_that_calls_on_in_a_context,
        call_that_keeps_a_graph,
        async_call_that_keeps_a_graph,
    ],
)
def test_nothing_stays_of_a_late_answer(agent: str, call: Callable[[], None]) -> None:
    with pytest.raises(RpcTimeoutError, match="'w1'"):
        call()
    time.sleep(0.8)  # the worker has come to an end with it
    assert until(lambda: not any(left())), left()


def test_a_good_call_after_a_late_one(agent: str) -> None:
    x = leaf()
    with fd.context() as context_id:
        with pytest.raises(RpcTimeoutError):
            fd.rpc_sync("w1", af.slow_sine, (x,), timeout=0.05)
        loss = fd.rpc_sync("w1", torch.cos, (x,)).sum()
        time.sleep(0.3)
        fd.backward(context_id, [loss])
        torch.testing.assert_close(fd.get_gradients(context_id)[x], -x.detach().sin())
    assert until(lambda: not any(left())), left()


def test_an_rref_that_a_future_gives_belongs_to_this_worker(agent: str) -> None:
    future = fd.rpc_async("w1", af.make_rref_late, (0.05,))
    following = future.then(lambda done: (fd.get_worker_info().name, done.wait().is_owner()))
    assert following.wait() == ("w0", False)
    rref = future.wait()
    assert rref.owner_name() == "w1"
    assert torch.equal(rref.to_here(), torch.ones(2))
    del rref, future, following
    assert until(lambda: not any(left())), left()
