"""What agents of processes share: one link to each other worker, and who receives from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from fxforms.distributed.agent import RpcAgent
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import MessageError, WorkerLostError

Run = Callable[[Callable[[], None]], None]
_LEAVING = 0.5  # seconds that peers have to say goodbye too


class Cut(Exception):
    """The connection ended; the text says why."""


class Link(Protocol):
    """One worker's end of the connection to another."""

    peer: WorkerInfo

    def send(self, message: Message, run: Run | None) -> None:
        """Send ``message``, without a wait for the peer.

        ``run`` gets what has to wait, to be run in another thread; None lets this one wait.

        Raises:
            Cut: the connection has ended.
            MessageError: the message cannot be sent.
        """

    def receive(self) -> Message | None:
        """The next message, or None for a sign of life; one thread at a time.

        Raises:
            Cut: the peer died, left, or was silent for too long.
            MessageError: what came is no message; nothing more can be read.
        """

    def bye(self) -> None:
        """Tell the peer that this worker leaves."""

    def cut(self) -> None:
        """End the connection: `receive` raises, on both ends."""


class LinkedAgent(RpcAgent):
    """A worker that is a process, with one link to each other.

    Whoever receives a request answers it in that thread, after it has woken another to receive the
    next, so that an answer never waits for a thread and a handler may wait for other workers.
    """

    def connect(self, links: Iterable[Link]) -> None:
        """Receive from ``links``, one to each other worker."""
        self._links = {link.peer.id: link for link in links}
        self._ended = threading.Semaphore(0)
        for link in self._links.values():
            self.pool.submit(self._receive, link)

    def _transmit(self, to: WorkerInfo, message: Message, timeout: float) -> None:
        # A thread that asks has a timeout, and one that runs operators receives too; the thread of
        # a handler has nothing left to do.
        handler = message.is_response and message.type is not MessageType.SCRIPT_RET
        try:
            self._links[to.id].send(message, None if handler else self.pool.submit)
        except Cut as cut:
            raise WorkerLostError(f"Worker {to.name!r} is lost: {cut}") from None

    def _receive(self, link: Link) -> None:
        """Take messages of one peer until there is a request to answer, or the link ends.

        A built-in operator waits for nobody, so this thread runs it and goes on. For any other
        request another thread receives on, as its handler may wait for what this peer sends next.
        """
        while True:
            try:
                message = link.receive()
                if message is None:
                    continue
                handed = message.is_request and message.type is not MessageType.SCRIPT_CALL
                if handed:
                    self.pool.submit(self._receive, link)
            except (Cut, MessageError, WorkerLostError) as error:
                self._end(link, str(error))
                return
            if message.is_response:
                self._requests.complete(link.peer, message)
                continue
            self._serve(link.peer, message)
            if handed:
                return

    def _end(self, link: Link, reason: str) -> None:
        link.cut()
        self.lose(link.peer, reason)
        self._ended.release()

    def _close(self) -> None:
        links = list(getattr(self, "_links", {}).values())  # none where joining failed
        for link in links:
            with suppress(Cut):
                link.bye()
        end = time.monotonic() + _LEAVING
        for _ in links:
            self._ended.acquire(timeout=max(0.0, end - time.monotonic()))
        for link in links:
            link.cut()
