"""The requests of one agent that are not answered yet: each ends within its time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxforms.distributed.failures import error_of
from fxforms.distributed.futures import Outcome
from fxforms.distributed.message import Message, MessageType
from fxforms.errors import ArgumentError, RpcTimeoutError

UNSET_RPC_TIMEOUT = -1.0
DEFAULT_TIMEOUT = 60.0
MAX_TIMEOUT = 86_400.0
RESEND = 10.0  # seconds after which an idempotent request is sent again

Read = Callable[[Message], Any]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The name and the id of a worker. The id is its rank."""

    name: str
    id: int


class Request:
    """A request that is not answered yet, and what its answer ends."""

    __slots__ = ("deadline", "message", "outcome", "read", "resend", "timeout", "to")

    def __init__(
        self, to: WorkerInfo, timeout: float, outcome: Outcome[Any], read: Read | None
    ) -> None:
        self.to, self.timeout, self.outcome, self.read = to, timeout, outcome, read
        now = time.monotonic()
        self.deadline, self.resend = now + timeout, now + RESEND
        self.message: Message | None = None  # kept where it may be sent again

    def late(self) -> RpcTimeoutError:
        """The error of a request that is not answered in time."""
        return late(self.to, self.timeout)


class Requests:
    """All of them, by id. Who takes one out ends it, so each ends once.

    Args:
        unread: takes an answer that nobody waits for.
    """

    def __init__(self, unread: Callable[[Message], None]) -> None:
        self._unread = unread
        self._ids = itertools.count(1)
        self._open: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: Request) -> int:
        """Count ``request`` in; returns its id."""
        id = next(self._ids)
        self._open[id] = request
        return id

    def complete(self, sender: WorkerInfo, response: Message) -> None:
        """End the request that ``response`` answers."""
        request = self._open.get(response.id)
        if request is not None and (request.to.id != sender.id or not response.is_response):
            return
        if request is None or self._open.pop(response.id, None) is None:
            self._unread(response)
            return
        try:
            if response.type is MessageType.EXCEPTION:
                raise error_of(response, sender.name)
            value = request.read(response) if request.read else response
        except BaseException as error:
            request.outcome.fail(error.with_traceback(None))
        else:
            request.outcome.end(value)

    def fail(self, id: int, error: BaseException) -> None:
        """End request ``id`` with ``error``, if it has not ended."""
        request = self._open.pop(id, None)
        if request is not None:
            request.outcome.fail(error)

    def fail_all(self, error: Callable[[WorkerInfo], BaseException], to: int | None = None) -> None:
        """End all requests, or those to worker ``to``."""
        for id, request in list(self._open.items()):
            if to is None or request.to.id == to:
                self.fail(id, error(request.to))

    def unanswered(self) -> list[tuple[WorkerInfo, Message]]:
        """The idempotent requests that have waited long enough to be sent again."""
        now = time.monotonic()
        found = []
        for request in list(self._open.values()):
            if request.message is not None and request.resend < now:
                request.resend = now + RESEND
                found.append((request.to, request.message))
        return found

    def late(self) -> list[tuple[int, Request]]:
        """The requests that have run out of time; drops those that are cancelled."""
        now = time.monotonic()
        found = []
        for id, request in list(self._open.items()):
            if request.outcome.cancelled():
                self._open.pop(id, None)
            elif request.deadline < now:
                found.append((id, request))
        return found


def seconds(timeout: float | None, default: float) -> float:
    """The seconds that ``timeout`` means.

    Raises:
        ArgumentError: it is no time that can pass.
    """
    if timeout is None or timeout == UNSET_RPC_TIMEOUT:
        return default
    if not (isinstance(timeout, (int, float)) and 0 < timeout <= MAX_TIMEOUT):
        raise ArgumentError(
            f"timeout={timeout!r}: expected seconds, more than 0 and at most {MAX_TIMEOUT:g}."
        )
    return timeout


def late(worker: WorkerInfo, timeout: float) -> RpcTimeoutError:
    """The error of something that ``worker`` did not do in time."""
    return RpcTimeoutError(
        f"Worker {worker.name!r} has not answered within {timeout:g} s. It is slow, stopped, or "
        "waits for another worker. Give the call a longer timeout if it is slow."
    )
