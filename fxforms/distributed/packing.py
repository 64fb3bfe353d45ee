"""Which worker a command is packed for, and which RRefs go with it."""

from __future__ import annotations

import threading

from fxforms.distributed.agent import RpcAgent
from fxforms.distributed.commands import RpcCommandBase
from fxforms.distributed.message import Message
from fxforms.distributed.requests import WorkerInfo


class _Packing(threading.local):
    """The message that this thread packs: its receiver, and the forks of RRefs in it."""

    to: WorkerInfo | None = None
    forks: list[int]


_packing = _Packing()


def pack_for(agent: RpcAgent, to: WorkerInfo, command: RpcCommandBase) -> tuple[Message, list[int]]:
    """The message of ``command`` for worker ``to``, and the forks that RRefs in it made."""
    forks = _packing.forks = []
    _packing.to = to
    try:
        return command.to_message(), forks
    except BaseException:
        for callback in agent.on_unsent:
            callback(forks)
        raise
    finally:
        _packing.to = None


def receiver() -> WorkerInfo | None:
    """The worker that this thread packs a message for."""
    return _packing.to


def note_fork(fork_id: int) -> None:
    """An RRef in the message that this thread packs is the fork ``fork_id``."""
    _packing.forks.append(fork_id)
