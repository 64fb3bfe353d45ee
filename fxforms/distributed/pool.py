"""The threads of an agent: as many as there is work at once, each ended at shutdown."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from fxforms.errors import WorkerLostError

PREFIX = "fxforms worker "  # of the names of all threads
MAX_THREADS = 512
IDLE = 10.0  # seconds after which a thread without work ends

_logger = logging.getLogger("fxforms.distributed")
_Job = tuple[Callable[..., None], tuple[Any, ...]]


class Pool:
    """Runs jobs, each at once in a thread of its own.

    A handler may wait for other workers, which call back here, so a job never waits for a thread
    of the pool; at `MAX_THREADS` a new job is refused.
    """

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self._name = PREFIX + name
        self._start = start
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, function: Callable[..., None], *args: Any) -> None:
        """Run ``function(*args)``; what it raises is logged.

        Raises:
            WorkerLostError: the pool is closed, or all its threads are busy.
        """
        with self._lock:
            if self._closed or (not self._idle and len(self._threads) >= MAX_THREADS):
                state = "is shut down" if self._closed else f"is busy in {MAX_THREADS} threads"
                raise WorkerLostError(f"{self._name} {state} and takes no more work.")
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._threads.add(thread)
            self._jobs.put((function, args))

    def _run(self) -> None:
        self._start()
        job: _Job | None = self._jobs.get()
        while job is not None:
            function, args = job
            try:
                function(*args)
            except Exception:
                _logger.exception("%s: %s failed", self._name, function)
            del job, function, args  # they hold tensors
            with self._lock:
                if self._closed:
                    break
                self._idle += 1
            job = self._next()
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _next(self) -> _Job | None:
        """The next job, or None when this thread shall end."""
        try:
            return self._jobs.get(timeout=IDLE)
        except queue.Empty:
            pass
        with self._lock:
            if self._idle:
                self._idle -= 1
                return None
        return self._jobs.get()  # a job was counted on this thread meanwhile

    def count(self) -> int:
        """How many threads there are."""
        with self._lock:
            return len(self._threads)

    def close(self, timeout: float) -> None:
        """Take no more jobs, and wait for the threads to end; the calling one is not waited for."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for _ in range(self._idle):
                self._jobs.put(None)
            self._idle = 0
        end = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
