"""RRefs on every agent: values that stay where they are, as long as somebody wants them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from distributed import remote_functions as rf
from distributed.worlds import PROCESSES, until, world

from fxforms import distributed as fd
from fxforms.distributed.current import current_agent
from fxforms.distributed.rref_table import table_of
from fxforms.errors import ArgumentError, MessageError, RemoteError, RpcTimeoutError

KINDS = ("owned_rrefs", "used_rrefs", "pending_forks")


@pytest.fixture(scope="module", params=["local", *PROCESSES])
def agent(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    with world(request.param, 3, tmp_path_factory.mktemp("certificates")):
        yield request.param


def left() -> list[int]:
    """How many RRefs each worker has, and how many forks are under way."""
    gc.collect()  # a thread that ends may hold an error, and with it a frame, a little longer
    counts = [fd.debug_info(), *(fd.rpc_sync(name, rf.held) for name in ("w1", "w2"))]
    return [each[kind] for each in counts for kind in KINDS]


@pytest.fixture(autouse=True)
def _released(agent: str) -> Iterator[None]:
    """No test leaves a value, a use or a fork on any worker."""
    yield
    assert until(lambda: not any(left()), 60.0), left()  # each look collects all garbage


def test_a_value_stays_on_its_owner() -> None:
    rref = fd.remote("w1", rf.double, (torch.ones(2),))
    assert torch.equal(rref.to_here(), torch.full((2,), 2.0))
    assert rref.owner() == fd.WorkerInfo("w1", 1)
    assert rref.owner_name() == "w1"
    assert rref.confirmed_by_owner()
    assert not rref.is_owner()
    with pytest.raises(ArgumentError, match="'w1'"):
        rref.local_value()


def test_an_operator_and_its_own_worker() -> None:
    assert fd.remote("w2", torch.ones, (3,)).to_here().sum() == 3
    here = fd.remote("w0", torch.ones, (3,))
    assert here.is_owner()
    assert here.to_here() is here.local_value()


def test_a_value_of_this_worker() -> None:
    own = fd.RRef([torch.ones(2)])
    assert own.is_owner()
    assert torch.equal(fd.rpc_sync("w1", rf.to_here, (own,))[0], torch.ones(2))
    assert torch.equal(fd.rpc_sync("w1", rf.pass_on, (own, ["w2", "w0"]))[0], torch.ones(2))


@pytest.mark.parametrize("path", [["w1"], ["w2"], ["w2", "w1"], ["w2", "w0", "w2"], ["w1", "w1"]])
def test_users_pass_it_on(path: list[str]) -> None:
    rref = fd.remote("w1", torch.ones, (4,))
    assert fd.rpc_sync(path[0], rf.pass_on, (rref, path[1:])).sum() == 4


def test_the_value_lives_while_a_user_does() -> None:
    rref = fd.remote("w1", torch.ones, (4,))
    back = fd.rpc_sync("w2", rf.echo, (rref,))
    again = fd.rpc_sync("w1", rf.echo, (back,))
    del rref, back
    gc.collect()
    assert not until(lambda: not fd.rpc_sync("w1", rf.held)["owned_rrefs"], seconds=0.4)
    assert again.to_here().sum() == 4


def test_it_is_passed_on_before_it_is_made() -> None:
    rref = fd.remote("w1", rf.sleep, (0.3,))
    futures = [fd.rpc_async(name, rf.to_here, (rref,)) for name in ("w1", "w2")]
    assert [future.wait(20) for future in futures] == ["w1", "w1"]


def test_methods_run_on_the_owner() -> None:
    counter = fd.remote("w1", rf.Counter, (10,))
    assert counter.rpc_sync().add(5) == 15
    assert counter.rpc_async().add(number=5).wait() == 20
    assert counter.remote().add(1).to_here() == 21
    assert fd.remote("w1", torch.ones, (3,)).rpc_sync().sum() == 3
    with pytest.raises(AttributeError):
        counter.rpc_sync()._secret()
    for name, rref in (("_secret", counter), ("method", fd.remote("w1", rf.make_plain))):
        with pytest.raises(RemoteError, match="not for other workers"):
            fd.rpc_sync("w1", fd.rref.call_method, (rref, name, [], {}))


def test_an_error_is_raised_where_the_value_is_asked_for() -> None:
    rref = fd.remote("w1", rf.fail, ("key", "gone"))
    with pytest.raises(KeyError, match="gone"):
        rref.to_here()
    with pytest.raises(KeyError, match="gone"):
        fd.rpc_sync("w2", rf.to_here, (rref,))


def test_a_value_that_is_late() -> None:
    rref = fd.remote("w1", rf.sleep, (0.6,))
    with pytest.raises(RpcTimeoutError, match="'w1'"):
        rref.to_here(timeout=0.1)
    assert rref.to_here() == "w1"


def test_it_travels_in_calls_only() -> None:
    rref = fd.remote("w1", torch.ones, (1,))
    with pytest.raises(MessageError):
        fd.codec.pack([rref])
    with pytest.raises(MessageError):
        rref.__reduce__()
    with pytest.raises(MessageError, match="cannot be sent"):  # the fork made before is forgotten
        fd.rpc_sync("w2", rf.echo, ([rref, object()],))
    agent = current_agent()
    fetch = fd.rref.PythonRRefFetchCall(12345)
    with pytest.raises(RemoteError, match="no such value"):
        agent.ask(agent.worker("w1"), fetch.to_message())


def test_many_at_once() -> None:
    rrefs = [fd.remote(f"w{n % 2 + 1}", torch.full, ((2,), n)) for n in range(100)]
    sums = [fd.rpc_async("w1", rf.to_here, (rref,)) for rref in rrefs]
    assert [future.wait(30)[0].item() for future in sums] == list(range(100))


def test_a_value_that_this_worker_makes_for_itself() -> None:
    for number in range(50):
        rref = fd.remote("w0", rf.double, (number,))
        assert rref.is_owner()
        value = rref.local_value() if number % 2 else rref.to_here()
        assert value == 2 * number
    failed = fd.remote("w0", rf.fail, ("value", "not this"))
    with pytest.raises(ValueError, match="not this"):
        failed.to_here()
    late = fd.remote("w0", rf.sleep, (1.0,), timeout=0.2)
    with pytest.raises(RpcTimeoutError, match="'w0'"):
        late.to_here()


def test_a_delete_that_comes_before_its_use() -> None:
    """As where a call that ran out of time is overtaken on its way."""
    table = table_of(current_agent())
    table.delete_fork(-5, -6)
    table.add_fork(-5, -6, 1).value.end(None)
    assert -5 not in table.owned
