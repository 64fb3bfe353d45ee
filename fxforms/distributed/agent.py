"""The agent: sends messages to workers by name, and answers theirs. Transports derive from it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fxforms.distributed import current
from fxforms.distributed.commands import COMMANDS
from fxforms.distributed.failures import exception_response
from fxforms.distributed.frame import isolated
from fxforms.distributed.futures import Future, Waiter
from fxforms.distributed.message import Message
from fxforms.distributed.pool import Pool
from fxforms.distributed.requests import RESEND, Read, Request, Requests, WorkerInfo, late, seconds
from fxforms.errors import ArgumentError, RpcError, WorkerLostError

_T = TypeVar("_T")

SHUTDOWN = 5.0  # seconds that the threads of an agent have to end
SWEEP = 0.05  # seconds between two looks for requests that ran out of time


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, and the agent that answers it."""

    agent: RpcAgent
    sender: WorkerInfo


Respond = Callable[[Origin, Message], Message]

_preparations: list[Callable[[RpcAgent], None]] = []
_COUNTER_BITS = 48  # of the 64 of an id that a worker gives


def prepare(preparation: Callable[[RpcAgent], None]) -> Callable[[RpcAgent], None]:
    """Decorates what an agent is given to when it starts, such as to make an entry of `state`."""
    _preparations.append(preparation)
    return preparation


class RpcAgent(ABC):
    """One worker's end of the transport.

    A transport implements `_transmit` and `_close`, calls `deliver` for each message that arrives
    and `lose` when a peer is gone.

    Args:
        info: this worker.
        workers: all workers of the world.
        respond: answers a request; see `fxforms.distributed.callback`.
        timeout: seconds that a request may take where the caller does not say.
    """

    def __init__(
        self, info: WorkerInfo, workers: list[WorkerInfo], respond: Respond, timeout: float
    ) -> None:
        self.info = info
        self.timeout = timeout
        self.lost: dict[int, str] = {}
        self.on_lost: list[Callable[[WorkerInfo], None]] = []
        self.on_unsent: list[Callable[[list[int]], None]] = []
        self.on_unread: list[Callable[[Message], None]] = []
        self.on_closed: list[Callable[[], None]] = []
        self.on_tick: list[Callable[[], None]] = []
        self.counts: list[Callable[[], dict[str, int]]] = []
        self.state: dict[str, Any] = {}
        self._workers: dict[str | int, WorkerInfo] = {}
        for worker in workers:
            self._workers[worker.name] = self._workers[worker.id] = worker
        self._respond = respond
        self._unique = itertools.count((info.id << _COUNTER_BITS) + 1)
        self._requests = Requests(self._unread)
        self._serving: set[tuple[int, int]] = set()
        self.closed = threading.Event()
        self.pool = Pool(repr(info.name), lambda: current.bind(self))
        for preparation in _preparations:
            preparation(self)
        self.pool.submit(self._sweep)

    # --- what a transport does -------------------------------------------------------------------

    @abstractmethod
    def _transmit(self, to: WorkerInfo, message: Message, timeout: float) -> None:
        """Send ``message`` to another worker; raises an `RpcError` if that surely failed."""

    @abstractmethod
    def _close(self) -> None:
        """End the connections, so that every thread that waits for one goes on."""

    def before_waiting(self) -> None:  # noqa: B027 - most transports have nothing to do
        """Called in a thread that waits next for another worker; it may be one that receives."""

    # --- what a caller uses ----------------------------------------------------------------------

    @property
    def workers(self) -> list[WorkerInfo]:
        """All workers of the world, by id."""
        return sorted(set(self._workers.values()), key=lambda worker: worker.id)

    def worker(self, to: str | int | WorkerInfo) -> WorkerInfo:
        """The worker with that name or id.

        Raises:
            ArgumentError: there is none.
        """
        key = to.id if isinstance(to, WorkerInfo) else to
        found = self._workers.get(key) if isinstance(key, (str, int)) else None
        if found is None:
            names = ", ".join(repr(worker.name) for worker in self.workers)
            raise ArgumentError(f"There is no worker {to!r}. The workers are {names}.")
        return found

    def send(
        self,
        to: WorkerInfo,
        message: Message,
        timeout: float | None = None,
        read: Read | None = None,
    ) -> Future[Any]:
        """Send a request; the future gets the response, or fails with the error of the worker.

        Args:
            to: the receiver, which may be this worker.
            message: the request. It gets a new id.
            timeout: seconds after which the future fails.
            read: makes the value of the future from the response, in a thread of the agent.
        """
        future: Future[Any] = Future()
        self._start(message, Request(to, seconds(timeout, self.timeout), future, read))
        return future

    def ask(self, to: WorkerInfo, message: Message, timeout: float | None = None) -> Message:
        """Send a request and wait for the response; raises what the future of `send` would."""
        waiter: Waiter[Message] = Waiter()
        request = Request(to, seconds(timeout, self.timeout), waiter, None)
        self._start(message, request)
        self.before_waiting()
        if not waiter.ended(request.timeout):
            self._requests.fail(message.id, request.late())
            waiter.ended(SHUTDOWN)  # an answer that came just now may not be there yet
        return waiter.value()

    def wait(self, future: Future[_T], worker: WorkerInfo, timeout: float | None) -> _T:
        """The value of a future that depends on ``worker``, within ``timeout`` seconds."""
        limit = seconds(timeout, self.timeout)
        self.before_waiting()
        try:
            return future.result(limit)
        except TimeoutError:
            if future.done():
                raise
            raise late(worker, limit) from None

    def _start(self, message: Message, request: Request) -> None:
        to = request.to
        message.id = self._requests.add(request)
        if COMMANDS[message.type].idempotent and to.id != self.info.id:
            request.message = message
        try:
            if self.closed.is_set() or to.id in self.lost:
                raise self._gone(to)
            if to.id == self.info.id:
                self.deliver(to, isolated(message))
            else:
                self._transmit(to, message, request.timeout)
        except BaseException as error:
            self._requests.fail(message.id, error)

    def new_id(self) -> int:
        """A number that no other worker gives: its id in the high bits, then a counter."""
        return next(self._unique)

    def asking(self) -> int:
        """How many requests of this worker are not answered yet."""
        return len(self._requests)

    def serving(self) -> int:
        """How many requests of others this worker has not answered yet."""
        return len(self._serving)

    def shutdown(self) -> None:
        """End the agent at once: what waits for an answer fails; connections and threads end.

        `fxforms.distributed.shutdown` agrees with the other workers before it calls this.
        """
        self.closed.set()
        self._close()
        self._requests.fail_all(self._gone)
        for callback in self.on_closed:
            callback()
        self.pool.close(SHUTDOWN)

    # --- what a transport calls ------------------------------------------------------------------

    def deliver(self, sender: WorkerInfo, message: Message) -> None:
        """Take a message that arrived from ``sender``."""
        if not message.is_request:
            self._requests.complete(sender, message)
            return
        try:
            self.pool.submit(self._serve, sender, message)
        except WorkerLostError as error:
            self._refuse(sender, message, error)

    def _refuse(self, sender: WorkerInfo, message: Message, error: WorkerLostError) -> None:
        """Answer a request that has no thread: by ``error``, unless it runs no function."""
        with current.bound(self), contextlib.suppress(RpcError):
            if COMMANDS[message.type].idempotent:
                self._serve(sender, message)
            else:
                self._drop(message)
                self._reply(sender, exception_response(error, message.id))

    def answer(self, sender: WorkerInfo, message: Message) -> Message:
        """Run a request; the response, which is an error where the request raised one."""
        return self._respond(Origin(self, sender), message)

    def _serve(self, sender: WorkerInfo, message: Message) -> None:
        """Run a request and send the response."""
        key = (sender.id, message.id)
        self._serving.add(key)
        response: Message | None = None
        try:
            response = self.answer(sender, message)
            self._reply(sender, response)
        except Exception as error:  # the caller is gone, or the answer cannot be sent as it is
            if response is not None:
                self._drop(response)
            with contextlib.suppress(RpcError):
                self._reply(sender, exception_response(error, message.id))
        finally:
            self._serving.discard(key)

    def _reply(self, sender: WorkerInfo, response: Message) -> None:
        if sender.id in self.lost:
            raise self._gone(sender)
        if sender.id == self.info.id:
            self._requests.complete(sender, isolated(response))
        else:
            self._transmit(sender, response, self.timeout)

    def _unread(self, response: Message) -> None:
        """An answer came when nobody waited for it any more."""
        with contextlib.suppress(WorkerLostError):
            self.pool.submit(self._drop, response)

    def _drop(self, message: Message) -> None:
        """Give up what a message holds that nobody reads."""
        with current.bound(self):
            for callback in self.on_unread:
                callback(message)

    def lose(self, worker: WorkerInfo, reason: str) -> None:
        """Take ``worker`` for dead: every request to it fails, now and later."""
        if self.closed.is_set() or worker.id in self.lost:
            return
        self.lost[worker.id] = reason
        self._requests.fail_all(self._gone, worker.id)
        for callback in self.on_lost:
            callback(worker)

    def _gone(self, worker: WorkerInfo) -> WorkerLostError:
        """Why nothing can be sent to ``worker``."""
        if worker.id in self.lost:
            return WorkerLostError(f"Worker {worker.name!r} is lost: {self.lost[worker.id]}")
        return WorkerLostError(
            f"Worker {self.info.name!r} is shut down and has no answer from {worker.name!r}."
        )

    def _sweep(self) -> None:
        """Fail requests that have run out of time, and tidy up, until the agent is closed."""
        while not self.closed.wait(SWEEP):
            self._tick()

    def _tick(self) -> None:
        """One look; nothing that it saw is held until the next."""
        for callback in self.on_tick:
            callback()
        for to, message in self._requests.unanswered():
            with contextlib.suppress(RpcError):
                self._transmit(to, message, RESEND)
        for id, request in self._requests.late():
            # Not in this thread: what waits for the future may run code of the user.
            self.pool.submit(self._requests.fail, id, request.late())


def giver(id: int) -> int:
    """The worker whose `new_id` gave ``id``."""
    return id >> _COUNTER_BITS
