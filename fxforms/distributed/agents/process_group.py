"""Workers that are processes on a trusted network: point-to-point on gloo, met through a store.

Nothing is encrypted and nobody is asked who he is: whoever reaches the port of the store or of a
worker can join. Use the gRPC agent where that is not the network's own business.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fxforms.distributed.agent import Respond, RpcAgent
from fxforms.distributed.agents import gloo_pair, gloo_store
from fxforms.distributed.agents.gloo_link import GlooLink
from fxforms.distributed.agents.linked import Cut, LinkedAgent
from fxforms.distributed.agents.pipe_link import PipeLink
from fxforms.distributed.agents.shared_memory import Probe, shared
from fxforms.distributed.options import Options, master
from fxforms.errors import FxformsError, RpcTimeoutError


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
            gloo_store.leave(self._store, self.info.id)
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
    address, end = master("process_group"), time.monotonic() + options.init_timeout
    try:
        store = gloo_store.enter(address, name, rank, options, end)
        workers = gloo_store.meet(store, name, rank, size, options, end)
        agent = ProcessGroupAgent(workers[rank], workers, respond, options.rpc_timeout)
    except RuntimeError as error:
        if isinstance(error, FxformsError):
            raise
        raise _late(name, options, error) from None
    probe = Probe()
    try:
        memory = _neighbours(store, rank, size, probe) if options.shared_memory else {}
        agent.start(store, options, memory)
        if not gloo_store.all_ready(store, size, end):
            raise RuntimeError("not all workers receive")
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
        f"init_rpc({name!r}): a worker left, or was too slow, while the workers joined; they have "
        f"{options.init_timeout:g} s. See what the others say. Here it was: {str(error)[:200]}"
    )


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
