"""Workers that are processes on a trusted network: point-to-point on gloo, met through a store.

Nothing is encrypted and nobody is asked who he is: whoever reaches the port of the store or of a
worker can join. Use the gRPC agent where that is not the network's own business.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fxforms.distributed.agent import Respond, RpcAgent
from fxforms.distributed.agents import gloo_pair
from fxforms.distributed.agents.gloo_link import GlooLink
from fxforms.distributed.agents.linked import Cut, LinkedAgent
from fxforms.distributed.agents.pipe_link import PipeLink
from fxforms.distributed.agents.shared_memory import Probe, shared
from fxforms.distributed.options import Options, master
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import ArgumentError, RpcTimeoutError

_RETRY = 0.05  # seconds until the store is looked for again


class ProcessGroupAgent(LinkedAgent):
    """A worker that is a process, with a gloo link to each other."""

    def start(self, store: TCPStore, options: Options, memory: dict[int, int]) -> None:
        """Make the links, and start to receive. All workers do so at once.

        ``memory`` has the process number of each worker that shares memory with this one.
        """
        self._store: TCPStore | None = store  # lives as long as the worker that serves it
        gloo = gloo_pair.device(options.host)
        others = [worker for worker in self.workers if worker.id != self.info.id]
        links = [
            GlooLink(store, gloo, self.info, peer, options, memory.get(peer.id, 0))
            for peer in others
        ]
        self.connect([*links, *_pipes(store, self.info.id, links, memory)])
        self.pool.submit(self._beat, links, options.silence / 4)

    def _close(self) -> None:
        super()._close()
        if self._store is not None:
            with suppress(RuntimeError):  # the worker that serves the store is gone
                self._store.set(f"left/{self.info.id}", "")
        self._store = None  # frees the port

    def _beat(self, links: list[GlooLink], period: float) -> None:
        """Tell the peers now and then that this worker lives."""
        while not self.closed.wait(period):
            for link in links:
                with suppress(Cut):
                    link.beat()


def start(name: str, rank: int, size: int, respond: Respond, options: Options) -> RpcAgent:
    """Join the world at MASTER_ADDR and MASTER_PORT as worker ``name``.

    Raises:
        ArgumentError: names or sizes do not agree, or the address is not usable.
        RpcTimeoutError: not all workers joined in time.
    """
    address = master("process_group")
    try:
        store = _enter(address, name, rank, options)
        workers = _meet(store, name, rank, size)
        agent = ProcessGroupAgent(workers[rank], workers, respond, options.rpc_timeout)
    except RuntimeError as error:
        if isinstance(error, ArgumentError):
            raise
        raise _late(name, options, error) from None
    probe = Probe()
    try:
        memory = _neighbours(store, rank, size, probe) if options.shared_memory else {}
        agent.start(store, options, memory)
        _all_ready(store, size)
    except RuntimeError as error:
        agent.shutdown()
        raise _late(name, options, error) from None
    finally:
        probe.close()
    return agent


def _neighbours(store: TCPStore, rank: int, size: int, probe: Probe) -> dict[int, int]:
    """The process number of each other worker that shares memory with this one."""
    store.set(f"memory/{rank}", json.dumps(probe.told()))
    others = {r: json.loads(store.get(f"memory/{r}")) for r in range(size) if r != rank}
    return {other: told[0] for other, told in others.items() if shared(told)}


def _late(name: str, options: Options, error: RuntimeError) -> RpcTimeoutError:
    return RpcTimeoutError(
        f"init_rpc({name!r}): not all workers joined within {options.init_timeout:g} s. Is each "
        f"started, with the same MASTER_ADDR and MASTER_PORT? The store said: {str(error)[:200]}"
    )


def _store(address: tuple[str, int], rank: int, options: Options) -> TCPStore:
    """The store of the world; the worker of rank 0 serves it, on that address alone."""
    wait = timedelta(seconds=options.init_timeout)
    if rank:
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


def _enter(address: tuple[str, int], name: str, rank: int, options: Options) -> TCPStore:
    """The store of the world, where this worker is the one of its rank.

    One that has left a world, and is to join the next at the same address, may find the store of
    the old one there, whose worker 0 has not left yet.
    """
    end = time.monotonic() + options.init_timeout
    while True:
        store = _store(address, rank, options)
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


def _meet(store: TCPStore, name: str, rank: int, size: int) -> list[WorkerInfo]:
    """All workers, each as it told the store."""
    store.set(f"worker/{rank}", json.dumps([name, size]))
    told = [json.loads(store.get(f"worker/{other}")) for other in range(size)]
    names = [name for name, _ in told]
    if len(set(names)) < size or any(other != size for _, other in told):
        raise ArgumentError(
            f"init_rpc({name!r}, world_size={size}): the workers do not agree; they are {told} "
            "(name, world_size). Give each its own name and all the same world_size."
        )
    return [WorkerInfo(name, id) for id, name in enumerate(names)]


def _all_ready(store: TCPStore, size: int) -> None:
    """Wait until every worker receives."""
    if store.add("ready", 1) == size:
        store.set("go", "")
    store.get("go")


def _pipes(
    store: TCPStore, rank: int, links: list[GlooLink], memory: dict[int, int]
) -> list[PipeLink]:
    """A pipe beside the link to each worker that shares memory with this one."""
    near = [link for link in links if link.shared is not None]
    own = {link.peer.id: os.pipe() for link in near}
    store.set(f"pipes/{rank}", json.dumps({id: ends[1] for id, ends in own.items()}))
    found = []
    for link in near:
        id = link.peer.id
        other = json.loads(store.get(f"pipes/{id}")).get(str(rank), -1)
        assert link.shared is not None
        found.append(PipeLink(link, link.shared, memory[id], own[id], other))
    return found
