"""Measuring in another process, so that a crash or a hang ends one pair and not the run."""

from __future__ import annotations

import warnings
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType

import torch

from opinfo_db.cli.measure import Outcome, measure, measured_ops

# The imports and torch's database, on a busy machine.
_START_SECONDS = 300.0


class Worker:
    """A process that measures one pair after the other, and is replaced when it dies or hangs."""

    def __init__(self, timeout: float) -> None:
        """No process yet; ``timeout`` is in seconds, for one pair."""
        self._timeout = timeout
        self._context = get_context("spawn")
        self._process = self._context.Process()
        self._pipe: Connection | None = None

    def __enter__(self) -> Worker:
        """Use it in a ``with`` statement, which ends the process."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process."""
        self._stop()

    @property
    def pid(self) -> int | None:
        """The id of the process, ``None`` before the first pair."""
        return self._process.pid

    def measure(self, name: str, composition: str, side: str) -> Outcome:
        """The outcome of one pair; failed if the process dies of it or does not answer."""
        pipe = self._pipe or self._start()
        try:
            pipe.send((name, composition, side))
            if pipe.poll(self._timeout):
                answer: Outcome = pipe.recv()
                return answer
            outcome = Outcome("failed", f"no answer within {self._timeout:g} s")
        except (EOFError, OSError):
            self._process.join()
            outcome = Outcome("failed", f"the process died, exit code {self._process.exitcode}")
        self._stop()
        return outcome

    def _start(self) -> Connection:
        """Start a process and wait until it is ready.

        Raises:
            RuntimeError: it does not get ready.
        """
        self._pipe, end = self._context.Pipe()
        self._process = self._context.Process(target=_work, args=(end,), daemon=True)
        self._process.start()
        end.close()
        if not self._pipe.poll(_START_SECONDS):
            raise RuntimeError(f"the measuring process did not start within {_START_SECONDS:g} s")
        self._pipe.recv()
        return self._pipe

    def _stop(self) -> None:
        """End the process, if there is one."""
        if self._pipe:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._pipe = None


def _work(pipe: Connection) -> None:
    """Answer each pair with its outcome, until the other end closes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    entries = measured_ops()
    pipe.send("ready")
    while True:
        try:
            name, composition, side = pipe.recv()
        except EOFError:
            return
        pipe.send(measure(entries[name], composition, side))
