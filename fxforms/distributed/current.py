"""Which agent a call is made with: that of the thread, else the only one of the process."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from fxforms.errors import ArgumentError

if TYPE_CHECKING:
    from fxforms.distributed.agent import RpcAgent

_thread = threading.local()
_agents: list[RpcAgent] = []
_known: weakref.WeakSet[RpcAgent] = weakref.WeakSet()  # those that are shut down too


def bind(agent: RpcAgent | None) -> None:
    """Make ``agent`` that of this thread."""
    _thread.agent = agent


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
    raise ArgumentError("This process is no RPC worker. Call fxforms.distributed.init_rpc first.")
