"""How workers on gloo find each other: worker 0 serves a store, and says there who has come.

torch's store writes C++ stack traces to the log where it waits in vain. So nothing here lets it
wait: this looks again and again, and connects when there is something to connect to.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fxforms.distributed.options import Options
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import ArgumentError, RpcTimeoutError

_RETRY = 0.05  # seconds until the store is looked for, or into, again
_LEAVING = 1.0  # seconds that worker 0 goes on to serve the store, where the others shall not join


def enter(address: tuple[str, int], name: str, rank: int, options: Options, end: float) -> TCPStore:
    """The store of the world, where this worker is the one of its rank.

    One that has left a world, and is to join the next at the same address, may find the store of
    the old one there, whose worker 0 has not left yet.

    Raises:
        ArgumentError: the address is not usable, or another worker has this rank.
        RpcTimeoutError: worker 0 is not there when the time is ``end``.
    """
    while True:
        store = _store(address, name, rank, options, end)
        try:
            if store.add(f"rank/{rank}", 1) == 1:
                return store
            old = store.check([f"left/{rank}"])
        except RuntimeError:  # it ends just now
            if time.monotonic() > end:
                raise
            old = True
        if not old or time.monotonic() > end:
            raise ArgumentError(f"init_rpc({name!r}, rank={rank}): another worker has this rank.")
        del store
        time.sleep(_RETRY)


def _store(
    address: tuple[str, int], name: str, rank: int, options: Options, end: float
) -> TCPStore:
    """The store of the world; the worker of rank 0 serves it, on that address alone."""
    wait = timedelta(seconds=options.init_timeout)
    if rank:
        _reach(address, name, options, end)
        return TCPStore(*address, None, False, wait, wait_for_workers=False)
    try:
        listener = socket.create_server(address)
    except OSError as error:
        raise ArgumentError(
            f"init_rpc(rank=0): cannot listen on MASTER_ADDR, MASTER_PORT = {address}: {error}. "
            "Give an address of this machine and a free port."
        ) from None
    listen = listener.detach()  # the store closes it
    return TCPStore(*address, None, True, wait, wait_for_workers=False, master_listen_fd=listen)


def _reach(address: tuple[str, int], name: str, options: Options, end: float) -> None:
    """Wait until somebody listens on ``address``."""
    while True:
        left = end - time.monotonic()
        try:
            socket.create_connection(address, max(left, _RETRY)).close()
            return
        except OSError as error:
            if left < 0:
                raise RpcTimeoutError(
                    f"init_rpc({name!r}): worker 0 was not there within {options.init_timeout:g} "
                    f"s. Is it started, and do MASTER_ADDR and MASTER_PORT name it? Nobody listens "
                    f"on {address}: {error}"
                ) from None
        time.sleep(_RETRY)


def awaited(store: TCPStore, key: str, end: float) -> Any:
    """What is set under ``key``, or None if it is not there when the time is ``end``."""
    pause = 0.001
    while not store.check([key]):
        if time.monotonic() > end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, _RETRY)
    return store.get(key)


def meet(
    store: TCPStore, name: str, rank: int, size: int, options: Options, end: float
) -> list[WorkerInfo]:
    """All workers, as each told worker 0, which tells the others.

    Raises:
        ArgumentError: names or sizes do not agree.
        RpcTimeoutError: not all came before the time is ``end``.
    """
    store.set(f"worker/{rank}", json.dumps([name, size]))
    if rank:
        text = awaited(store, "workers", end)
        if text is None:
            raise RpcTimeoutError(
                f"init_rpc({name!r}): worker 0 has not said within {options.init_timeout:g} s that "
                "all workers joined. Is each started, with the same MASTER_ADDR and MASTER_PORT?"
            )
        told = json.loads(text)
        store.set(f"seen/{rank}", "")
    else:
        told = _gathered(store, size, end)
        store.set("workers", json.dumps(told))
    try:
        return _agreed(told, name, size, options)
    except (ArgumentError, RpcTimeoutError):
        if not rank:  # the others learn it too, before the store ends
            last = time.monotonic() + _LEAVING
            for other in range(1, len(told)):
                if told[other]:
                    awaited(store, f"seen/{other}", last)
        raise


def _gathered(store: TCPStore, size: int, end: float) -> list[Any]:
    """Name and world size of each, None for one that did not come; up to a size that differs."""
    told: list[Any] = []
    for other in range(size):
        text = awaited(store, f"worker/{other}", end)
        told.append(None if text is None else json.loads(text))
        if told[-1] and told[-1][1] != size:
            break
    return told


def _agreed(told: list[Any], name: str, size: int, options: Options) -> list[WorkerInfo]:
    """The workers, if ``told`` has all of them and they agree."""
    there = [worker for worker in told if worker]
    names = [other for other, _ in there]
    if len(set(names)) < len(names) or any(other != size for _, other in there):
        raise ArgumentError(
            f"init_rpc({name!r}, world_size={size}): the workers do not agree; they are {there} "
            "(name, world_size). Give each its own name and all the same world_size."
        )
    if len(there) < size:
        missing = [rank for rank, worker in enumerate(told) if not worker]
        raise RpcTimeoutError(
            f"init_rpc({name!r}): the workers of rank {missing} have not joined within "
            f"{options.init_timeout:g} s. Is each started, with the same MASTER_ADDR and "
            "MASTER_PORT?"
        )
    return [WorkerInfo(name, id) for id, name in enumerate(names)]


def all_ready(store: TCPStore, size: int, end: float) -> bool:
    """Wait until every worker receives; False if one does not when the time is ``end``."""
    if store.add("ready", 1) == size:
        store.set("go", "")
    return awaited(store, "go", end) is not None


def leave(store: TCPStore, rank: int) -> None:
    """Note that the worker of ``rank`` has left, for one that comes after it."""
    with suppress(RuntimeError):  # the worker that serves the store is gone
        store.set(f"left/{rank}", "")
