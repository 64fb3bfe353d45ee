"""RRefs in messages that are not read, or not sent: they are released as those that are."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from distributed import remote_functions as rf
from distributed.worlds import held, until

from fxforms import distributed as fd
from fxforms.distributed import pool
from fxforms.errors import MessageError, RemoteError, WorkerLostError

pytestmark = pytest.mark.usefixtures("local_workers")
OWNERS = pytest.mark.parametrize("owner", ["w0", "w1", "w2"])


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    yield
    assert until(lambda: not counts()), counts()


def counts() -> dict[str, int]:
    gc.collect()  # an error that was raised keeps frames
    found = held(fd.debug_info())
    return {name: count for name, count in found.items() if "rrefs" in name or "forks" in name}


def made_on(owner: str) -> fd.RRef:
    rref = fd.remote(owner, torch.ones, (2,))
    rref.to_here()
    return rref


def by_rpc_async(to: str, fn: Any, args: tuple[Any, ...]) -> Any:
    return fd.rpc_async(to, fn, args).wait()


def by_remote(to: str, fn: Any, args: tuple[Any, ...]) -> Any:
    return fd.remote(to, fn, args).to_here()


HOW = pytest.mark.parametrize("call", [fd.rpc_sync, by_rpc_async, by_remote])


@OWNERS
@HOW
def test_an_argument_that_cannot_be_read(owner: str, call: Any) -> None:
    rref = made_on(owner)
    for value in (
        [rf.unreadable([1]), rref],
        [rref, rf.unreadable([1]), {"deep": (rref,)}],
        [rf.unreadable([rref])],
        [rf.Pair(rf.unreadable([rf.Pair(1, rref)]), (rref, rref))],
    ):
        with pytest.raises(RemoteError, match="it stays where it is"):
            call("w1", rf.echo, (value,))


@OWNERS
def test_in_a_context(owner: str) -> None:
    rref = made_on(owner)
    with fd.context(), pytest.raises(RemoteError, match="it stays where it is"):
        fd.rpc_sync("w1", rf.echo, ([rf.unreadable([1]), rref],))
    with fd.context(), pytest.raises(MessageError, match="it stays where it is"):
        fd.rpc_sync("w1", rf.beside, (rref, "unreadable"))


@OWNERS
@HOW
def test_a_result_that_cannot_be_read(owner: str, call: Any) -> None:
    rref = made_on(owner)
    for _ in range(3):
        with pytest.raises(MessageError, match="it stays where it is"):
            call("w1", rf.beside, (rref, "unreadable"))


@OWNERS
def test_a_result_that_cannot_be_sent(owner: str) -> None:
    rref = made_on(owner)
    with pytest.raises(RemoteError, match="cannot be sent"):
        fd.rpc_sync("w1", rf.beside, (rref, "unsendable tensor"))


@OWNERS
def test_a_worker_that_has_no_thread_left(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rref, go = made_on(owner), threading.Event()
    monkeypatch.setattr(pool, "MAX_THREADS", 0)
    WAITING.append(go)
    futures = []
    try:
        for _ in range(12):  # more than there are idle threads
            futures.append(fd.rpc_async("w1", wait_for_it, (rref,)))
    finally:
        go.set()
    refused = [f for f in futures if isinstance(f.exception(10.0), WorkerLostError)]
    assert refused
    WAITING.clear()
    del futures, refused


WAITING: list[threading.Event] = []


@fd.register
def wait_for_it(rref: Any) -> None:
    WAITING[0].wait(10.0)
