"""Workers that are threads of one process: for a first look, and for tests."""

from __future__ import annotations

import threading
import time

from fxforms.distributed import current
from fxforms.distributed.agent import Respond, RpcAgent
from fxforms.distributed.frame import isolated
from fxforms.distributed.message import Message
from fxforms.distributed.options import Options
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import ArgumentError, RpcTimeoutError, WorkerLostError


class _World:
    """The workers of this process that find each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.infos: dict[int, WorkerInfo] = {}
        self.agents: dict[int, LocalAgent] = {}
        self.left = 0


_world: _World | None = None
_changed = threading.Condition()


class LocalAgent(RpcAgent):
    """A worker that is a thread. Messages are copied, so nothing is shared that a wire would part.

    Args:
        world: the world that this worker has joined.
    """

    def __init__(self, info: WorkerInfo, world: _World, respond: Respond, timeout: float) -> None:
        super().__init__(info, list(world.infos.values()), respond, timeout)
        self._world = world

    def _transmit(self, to: WorkerInfo, message: Message, timeout: float) -> None:
        peer = self._world.agents.get(to.id)
        if peer is None or peer.closed.is_set():
            raise WorkerLostError(f"Worker {to.name!r} is shut down.")
        with current.bound(peer):  # what waits for an answer goes on in this thread
            peer.deliver(self.info, isolated(message))

    def _close(self) -> None:
        global _world
        with _changed:
            self._world.left += 1
            if self._world.left == self._world.size and _world is self._world:
                _world = None
        for peer in self._world.agents.values():
            if peer is not self:
                peer.lose(self.info, "it was shut down.")


def start(name: str, rank: int, size: int, respond: Respond, options: Options) -> RpcAgent:
    """Join the world of this process as worker ``name``, and wait until all have joined.

    Raises:
        ArgumentError: the name, the rank or the size does not fit the workers that are there.
        RpcTimeoutError: not all workers joined in time.
    """
    end = time.monotonic() + options.init_timeout
    with _changed:
        world = _enter(name, rank, size)
        complete = _changed.wait_for(lambda: len(world.infos) == size, end - time.monotonic())
        if not complete:
            _leave(world, rank)
            raise RpcTimeoutError(
                f"init_rpc({name!r}): {len(world.infos) + 1} of {size} workers joined within "
                f"{options.init_timeout:g} s. Call init_rpc in one thread for each rank."
            )
        agent = LocalAgent(WorkerInfo(name, rank), world, respond, options.rpc_timeout)
        world.agents[rank] = agent
        _changed.notify_all()
        _changed.wait_for(lambda: len(world.agents) == size, end - time.monotonic())
    return agent


def _enter(name: str, rank: int, size: int) -> _World:
    """The world of this process, with worker ``name`` in it."""
    global _world
    if _world is None:
        _world = _World(size)
    names = {info.name for info in _world.infos.values()}
    if size != _world.size or rank in _world.infos or name in names:
        raise ArgumentError(
            f"init_rpc({name!r}, rank={rank}, world_size={size}): this process has workers "
            f"{sorted(names)} of ranks {sorted(_world.infos)} in a world of {_world.size}. Give "
            "each its own name and rank, the same world_size, and shut the old world down first."
        )
    _world.infos[rank] = WorkerInfo(name, rank)
    _changed.notify_all()
    return _world


def _leave(world: _World, rank: int) -> None:
    """Take back an `_enter`."""
    global _world
    del world.infos[rank]
    if not world.infos and _world is world:
        _world = None
