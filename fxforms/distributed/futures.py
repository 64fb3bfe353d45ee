"""The future of a remote call."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_U = TypeVar("_U")


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
                result.set_exception(error)
            else:
                result.set_result(value)

        self.add_done_callback(run)
        return result
