"""What agents of processes share: one link to each other worker, and who receives from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Protocol

from fxforms.distributed.agent import RpcAgent
from fxforms.distributed.message import Message
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.short import is_short
from fxforms.errors import WorkerLostError

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


_PATIENCE = 0.01  # seconds that a short request may keep its link from receiving


class Turn:
    """The right to receive from a link, of a thread that answers a request from it meanwhile."""

    def __init__(self, pass_on: Callable[[], None]) -> None:
        self._pass_on = pass_on
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self.passed = False

    def end(self) -> None:
        """Have another thread receive, once."""
        with self._lock, suppress(WorkerLostError):  # the agent ends, or has no thread left
            if not self.passed:
                self._pass_on()
                self.passed = True

    def over(self) -> bool:
        """The request is answered: True if another thread receives, else none ever will."""
        with self._lock:
            passed, self.passed = self.passed, True
        return passed

    def end_if_long(self) -> None:
        """Have another thread receive, if the request takes long."""
        if time.monotonic() - self._since > _PATIENCE:
            self.end()


class LinkedAgent(RpcAgent):
    """A worker that is a process, with a link to each other.

    Whoever receives a request answers it in that thread, so that an answer never waits for one.
    Another thread receives the next: at once, or, where the answer should be short, when it takes
    long or is about to wait for another worker.
    """

    _all: tuple[Link, ...] = ()
    _links: Mapping[int, Link] = MappingProxyType({})  # none where joining failed

    def connect(self, links: Iterable[Link]) -> None:
        """Receive from ``links``; of several to one worker the last is sent by."""
        self._all = tuple(links)
        self._links = {link.peer.id: link for link in self._all}
        self._ended = threading.Semaphore(0)
        self._thread = threading.local()
        self._turns: dict[int, Turn] = {}
        self.on_tick.append(self._end_long_turns)
        for link in self._all:
            self.pool.submit(self._receive, link)

    def _transmit(self, to: WorkerInfo, message: Message, timeout: float) -> None:
        # A thread that asks has a timeout, and one that has its turn must go on to receive; any
        # other that answers has nothing left to do.
        turn = getattr(self._thread, "turn", None)
        free = message.is_response and (turn is None or turn.passed)
        link = self._links.get(to.id)
        if link is None:
            raise self._gone(to)
        try:
            link.send(message, None if free else self.pool.submit)
        except Cut as cut:
            raise WorkerLostError(f"Worker {to.name!r} is lost: {cut}") from None

    def _receive(self, link: Link) -> None:
        """Take messages of one peer until another thread does, or the link ends."""
        while True:
            try:
                message = link.receive()
                if message is None:
                    continue
                short = message.is_response or is_short(message)
                if not (short or self._passed_on(link, message)):
                    continue
            except Exception as error:  # whatever hostile bytes provoke ends the link
                self._end(link, str(error))
                return
            if message.is_response:
                self._requests.complete(link.peer, message)
            elif not short:
                self._serve(link.peer, message)
                return
            elif self._serve_in_turn(link, message):
                return

    def _passed_on(self, link: Link, message: Message) -> bool:
        """True if another thread receives from now on; False if there was none for ``message``."""
        try:
            self.pool.submit(self._receive, link)
        except WorkerLostError as error:
            if self.closed.is_set():
                raise
            self._refuse(link.peer, message, error)
            return False
        return True

    def _serve_in_turn(self, link: Link, message: Message) -> bool:
        """Answer a request; True if another thread receives from the link by then."""
        turn = Turn(lambda: self.pool.submit(self._receive, link))
        self._thread.turn = self._turns[id(link)] = turn
        try:
            self._serve(link.peer, message)
        finally:
            self._thread.turn = None
            if self._turns.get(id(link)) is turn:
                del self._turns[id(link)]
        return turn.over()

    def before_waiting(self) -> None:
        turn = getattr(self._thread, "turn", None)
        if turn is not None:
            turn.end()

    def _end_long_turns(self) -> None:
        for turn in list(self._turns.values()):
            turn.end_if_long()

    def _end(self, link: Link, reason: str) -> None:
        for other in self._all:
            if other.peer.id == link.peer.id:
                other.cut()
        self.lose(link.peer, reason)
        self._ended.release()

    def _close(self) -> None:
        links = self._all
        for link in links:
            with suppress(Cut):
                link.bye()
        end = time.monotonic() + _LEAVING
        for _ in links:
            self._ended.acquire(timeout=max(0.0, end - time.monotonic()))
        for link in links:
            link.cut()
        self._links, self._all = {}, ()
