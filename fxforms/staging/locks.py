"""Locks that a forked child finds free: the threads that held them are not in it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_FORK_WAITS = 10.0  # seconds at most


class Lock:
    """A re-entrant lock."""

    def __init__(self, steady: bool = False) -> None:
        """``steady``: a fork waits for it, as what it guards is no use half changed."""
        self.inner: Any = threading.RLock()
        self.steady = steady
        _locks.add(self)

    def __enter__(self) -> None:
        self.inner.acquire()

    def __exit__(self, *error: object) -> None:
        self.inner.release()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_forking = threading.local()


def _before() -> None:
    steady = [lock.inner for lock in list(_locks) if lock.steady]
    _forking.held = [inner for inner in steady if inner.acquire(timeout=_FORK_WAITS)]


def _in_parent() -> None:
    for inner in _forking.held:
        inner.release()


def _in_child() -> None:
    _in_parent()
    for lock in list(_locks):
        if not lock.inner._is_owned():  # else by the thread that forks, which goes on here
            lock.inner = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
