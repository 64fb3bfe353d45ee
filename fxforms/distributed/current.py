"""Which agent a call is made with: that of the thread, else the only one of the process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fxforms.errors import ArgumentError

if TYPE_CHECKING:
    from fxforms.distributed.agent import RpcAgent

_thread = threading.local()
_agents: list[RpcAgent] = []
_forked = False
_known: weakref.WeakSet[RpcAgent] = weakref.WeakSet()  # those that are shut down too


def bind(agent: RpcAgent | None) -> None:
    """Make ``agent`` that of this thread."""
    _thread.agent = agent


@contextmanager
def bound(agent: RpcAgent) -> Iterator[None]:
    """Make ``agent`` that of this thread for a while."""
    before: RpcAgent | None = getattr(_thread, "agent", None)
    bind(agent)
    try:
        yield
    finally:
        bind(before)


def add(agent: RpcAgent) -> None:
    """Count ``agent`` among those of the process, and make it that of this thread."""
    _agents.append(agent)
    _known.add(agent)
    bind(agent)


def remove(agent: RpcAgent) -> None:
    """Forget ``agent``."""
    _agents.remove(agent)
    bind(None)


def known_agents() -> list[RpcAgent]:
    """The agents of this process, with those that are shut down but still held by something."""
    return list(_known)


def find() -> RpcAgent | None:
    """The agent of this thread, else the only one of the process, else None."""
    agent: RpcAgent | None = getattr(_thread, "agent", None)
    if agent is None and len(_agents) == 1:
        agent = _agents[0]
    return agent


def refuse_second(name: str, threads: bool) -> None:
    """Raise unless worker ``name`` may start: in this thread, or alone in this process."""
    agent = getattr(_thread, "agent", None) if threads else next(iter(_agents), None)
    if agent is not None:
        raise ArgumentError(
            f"init_rpc({name!r}): this is worker {agent.info.name!r} already. Call shutdown first."
        )


def current_agent() -> RpcAgent:
    """The agent of this thread.

    Raises:
        ArgumentError: there is none, or the thread belongs to none of several.
    """
    agent = find()
    if agent is not None:
        return agent
    if _agents:
        raise ArgumentError(
            f"{len(_agents)} workers are threads of this process, and this thread is none of them. "
            "Make the call in the thread that called init_rpc."
        )
    if _forked:
        raise ArgumentError(
            "This process was forked from an RPC worker and is none itself: its parent has the "
            "threads and the connections. Make the call there, or call init_rpc here."
        )
    raise ArgumentError("This process is no RPC worker. Call fxforms.distributed.init_rpc first.")


def _leave_to_parent() -> None:
    """Have no worker here, in a process that was just forked from one.

    Its requests would be answered to the parent, under numbers that the parent uses too.
    """
    global _forked
    _forked = _forked or bool(_agents)
    for agent in _known:
        agent.closed = threading.Event()  # the old one's lock may be held by a thread that is gone
        agent.closed.set()
    _agents.clear()
    bind(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
