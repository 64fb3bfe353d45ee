"""Who holds which value: the life of RRefs, as the messages about them keep it.

The owner keeps a value while any user lives. A user that passes an RRef on stays until the child is
known to the owner, so the value cannot vanish in between. One table for each agent.
"""

from __future__ import annotations

import queue
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from fxforms.distributed.agent import Origin, RpcAgent, prepare
from fxforms.distributed.callback import handles
from fxforms.distributed.calls import send_command
from fxforms.distributed.commands import (
    RpcCommandBase,
    RRefAck,
    RRefChildAccept,
    RRefForkRequest,
    RRefUserDelete,
)
from fxforms.distributed.functions import SendRpcBackward
from fxforms.distributed.futures import Future
from fxforms.distributed.message import MessageType
from fxforms.distributed.remembered import Remembered
from fxforms.distributed.requests import WorkerInfo


@dataclass(slots=True)
class Use:
    """This worker's hold on a value: what an `RRef` object stands for.

    Attributes:
        settled: True when the owner knows of this use, or could not make the value.
        children: forks that were passed on and that the owner does not know yet.
    """

    rref_id: int
    fork_id: int
    owner: WorkerInfo
    script: bool
    settled: bool = False
    children: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Owned:
    """A value that this worker owns, and the worker of each of its users."""

    value: Future[Any] = field(default_factory=Future)
    forks: dict[int, int] = field(default_factory=dict)


class RRefTable:
    """The RRefs of one agent."""

    def __init__(self, agent: RpcAgent) -> None:
        self.agent = agent
        self.owned: dict[int, Owned] = {}
        self.uses: dict[int, Use] = {}
        # What RRefs of this worker were made of, by id, as long as such an RRef lives.
        self.made_of: weakref.WeakValueDictionary[int, SendRpcBackward] = (
            weakref.WeakValueDictionary()
        )
        self._gone = Remembered()  # users deleted before they were known
        self._children: dict[int, tuple[Use, int]] = {}  # and the worker that it was sent to
        # A finalizer may run anywhere, so it only puts the use here.
        self.released: queue.SimpleQueue[Use] = queue.SimpleQueue()
        self._waiting: list[Use] = []
        self._lock = threading.RLock()

    # --- the owner's side ------------------------------------------------------------------------

    def entry(self, rref_id: int) -> Owned:
        """The value ``rref_id``, which may be known by a fork before it is made."""
        with self._lock:
            return self.owned.setdefault(rref_id, Owned())

    def add_fork(self, rref_id: int, fork_id: int, user: int) -> Owned:
        """Keep the value for one more user, unless that is gone or lost already."""
        with self._lock:
            if self._gone.take(fork_id) or user in self.agent.lost:
                return self.owned.get(rref_id) or Owned()
            owned = self.entry(rref_id)
            owned.forks[fork_id] = user
            return owned

    def delete_fork(self, rref_id: int, fork_id: int) -> None:
        """A user is gone; the value goes with the last."""
        with self._lock:
            owned = self.owned.get(rref_id)
            if owned is None or fork_id not in owned.forks:
                self._gone.add(fork_id)
                return
            del owned.forks[fork_id]
            if not owned.forks:
                del self.owned[rref_id]

    # --- the user's side -------------------------------------------------------------------------

    def add_use(
        self, rref_id: int, fork_id: int, owner: WorkerInfo, script: bool, confirmed: Future[Any]
    ) -> Use:
        """Count one more use of this worker, which is settled when ``confirmed`` is done.

        The table keeps no error: its traceback would keep the RRef.
        """
        use = Use(rref_id, fork_id, owner, script)
        with self._lock:
            self.uses[fork_id] = use
        confirmed.add_done_callback(lambda done: setattr(use, "settled", True))
        return use

    def fork(self, use: Use, to: int) -> int:
        """The id of a new child of ``use`` on worker ``to``; ``use`` lives until it is accepted."""
        child = self.agent.new_id()
        with self._lock:
            if use.owner.id == self.agent.info.id and to != self.agent.info.id:
                self.add_fork(use.rref_id, child, to)
            else:
                use.children.add(child)
                self._children[child] = (use, to)
        return child

    def adopt(self, use: Use, parent: WorkerInfo, confirmed: Future[Any]) -> None:
        """Let the owner and the parent of a use that was passed on to this worker know of it."""
        if use.owner.id == self.agent.info.id:
            self.add_fork(use.rref_id, use.fork_id, use.owner.id)
            confirmed.end(None)
            self._accept(use, parent)
        elif parent.id == use.owner.id:  # which counted the fork as it sent it
            confirmed.end(None)
        else:
            command = RRefForkRequest(use.rref_id, use.fork_id)
            asked = send_command(self.agent, use.owner, command)
            asked.add_done_callback(lambda done: self._forked(done, use, parent, confirmed))

    def _forked(self, done: Any, use: Use, parent: WorkerInfo, confirmed: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            confirmed.end(None)
            self._accept(use, parent)
        else:
            confirmed.fail(error)

    def _accept(self, use: Use, parent: WorkerInfo) -> None:
        send_command(self.agent, parent, RRefChildAccept(use.fork_id))

    def accepted(self, fork_id: int) -> None:
        """The owner knows the child ``fork_id`` of a use of this worker."""
        with self._lock:
            use, _ = self._children.pop(fork_id, (None, 0))
            if use is not None:
                use.children.discard(fork_id)

    def forget(self, forks: list[int]) -> None:
        """These children never left this worker."""
        with self._lock:
            for fork_id in forks:
                self.accepted(fork_id)
                for rref_id in [r for r, owned in self.owned.items() if fork_id in owned.forks]:
                    self.delete_fork(rref_id, fork_id)

    def joined(self, latest: SendRpcBackward | None) -> SendRpcBackward | None:
        """``latest``, with what the RRefs of this worker were made of in front."""
        if not self.made_of:
            return latest
        joined = SendRpcBackward(0, (), latest)
        for ref in self.made_of.valuerefs():  # a list; other threads change made_of meanwhile
            if (send := ref()) is not None:
                joined.edges += send.edges
        return joined

    # --- the end ---------------------------------------------------------------------------------

    def collect(self) -> None:
        """Tell the owners of uses that are gone, unless a child still needs one."""
        with self._lock:
            gone, self._waiting = self._waiting, []
            while not self.released.empty():
                use = self.released.get()
                if self.uses.pop(use.fork_id, None) is not None:
                    gone.append(use)
            for use in gone:
                if use.children or not use.settled:
                    self._waiting.append(use)
                else:
                    self._delete(use)

    def _delete(self, use: Use) -> None:
        if use.owner.id == self.agent.info.id:
            self.delete_fork(use.rref_id, use.fork_id)
        elif use.owner.id not in self.agent.lost:
            send_command(self.agent, use.owner, RRefUserDelete(use.rref_id, use.fork_id))

    def lose(self, worker: WorkerInfo) -> None:
        """Worker ``worker`` is dead, and with it its uses and the children that it was sent."""
        with self._lock:
            for rref_id, owned in list(self.owned.items()):
                for fork_id in [f for f, user in owned.forks.items() if user == worker.id]:
                    self.delete_fork(rref_id, fork_id)
            for child in [c for c, (_, to) in self._children.items() if to == worker.id]:
                self.accepted(child)

    def clear(self) -> None:
        """The agent is shut down: nothing is owned or used any more."""
        with self._lock:
            self.owned.clear()
            self.uses.clear()
            self._waiting.clear()
            self._children.clear()

    def counts(self) -> dict[str, int]:
        """How many values are owned, and how many uses there are."""
        with self._lock:
            return {
                "owned_rrefs": len(self.owned),
                "used_rrefs": len(self.uses) + len(self._waiting),
                "pending_forks": len(self._children),
            }


def table_of(agent: RpcAgent) -> RRefTable:
    """The RRefs of ``agent``."""
    table: RRefTable = agent.state["rrefs"]
    return table


@prepare
def _prepare(agent: RpcAgent) -> None:
    table = agent.state["rrefs"] = RRefTable(agent)
    agent.on_tick.append(table.collect)
    agent.on_lost.append(table.lose)
    agent.on_unsent.append(table.forget)
    agent.on_closed.append(table.clear)
    agent.counts.append(table.counts)


@handles(MessageType.RREF_USER_DELETE)
def _user_delete(command: RRefUserDelete, origin: Origin) -> RpcCommandBase:
    table_of(origin.agent).delete_fork(command.rref_id, command.fork_id)
    return RRefAck()


@handles(MessageType.RREF_FORK_REQUEST)
def _fork_request(command: RRefForkRequest, origin: Origin) -> RpcCommandBase:
    table_of(origin.agent).add_fork(command.rref_id, command.fork_id, origin.sender.id)
    return RRefAck()


@handles(MessageType.RREF_CHILD_ACCEPT)
def _child_accept(command: RRefChildAccept, origin: Origin) -> RpcCommandBase:
    table_of(origin.agent).accepted(command.fork_id)
    return RRefAck()
