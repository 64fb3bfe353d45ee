"""The future of a remote call."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

_T = TypeVar("_T")
_U = TypeVar("_U")
_In = TypeVar("_In", contravariant=True)


class Outcome(Protocol[_In]):
    """What the answer to a request is given to."""

    def end(self, value: _In) -> None:
        """The request has ended with ``value``."""

    def fail(self, error: BaseException) -> None:
        """The request has ended with ``error``."""

    def cancelled(self) -> bool:
        """True if nobody waits for the answer any more."""


class Future(concurrent.futures.Future[_T], Generic[_T]):
    """What a remote call will return; ends with a value or an error within the call's timeout.

    It is a `concurrent.futures.Future`, with the names of ``torch.futures.Future`` beside.
    """

    def wait(self, timeout: float | None = None) -> _T:
        """The value, when it is there; raises the error that the call ended with."""
        return self.result(timeout)

    def value(self) -> _T:
        """The value of a future that is done."""
        return self.result(0)

    def then(self, callback: Callable[[Future[_T]], _U]) -> Future[_U]:
        """The future of ``callback(self)``, which runs when this one is done."""
        result: Future[_U] = Future()

        def run(done: Any) -> None:
            try:
                value = callback(done)
            except BaseException as error:
                result.fail(error)
            else:
                result.end(value)

        self.add_done_callback(run)
        return result

    def end(self, value: _T) -> None:
        """Set the value, unless the future is cancelled."""
        with suppress(concurrent.futures.InvalidStateError):
            self.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless the future is cancelled."""
        with suppress(concurrent.futures.InvalidStateError):
            self.set_exception(error)


class Waiter(Generic[_T]):
    """A future for the one thread that made it and waits at once: a lock and a value."""

    __slots__ = ("_error", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._error: BaseException | None = None

    def end(self, value: _T) -> None:
        """Wake the thread with ``value``."""
        self._value = value
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        """Wake the thread with ``error``."""
        self._error = error
        self._lock.release()

    def cancelled(self) -> bool:
        """False: its thread waits for it."""
        return False

    def ended(self, timeout: float) -> bool:
        """True if it has ended within ``timeout`` seconds; only then, or when it failed after."""
        return self._lock.acquire(timeout=timeout)

    def value(self) -> _T:
        """The value, or raises the error."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # the traceback would keep this frame, and with it itself
