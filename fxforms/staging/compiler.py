"""When a program is compiled: before its first run, or in the background while its graph runs."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fxforms.errors import CompileWarning
from fxforms.staging.locks import Lock

logger = logging.getLogger("fxforms.jit")


class Compilable(Protocol):
    """What is asked of a program."""

    __name__: str
    traced: Any
    executable: Any
    compiled_in: float | None


_importing = Lock(steady=True)


def backends() -> Any:
    """The adapter over the compiler, which is slow to import and not always used."""
    with _importing:
        return importlib.import_module("fxforms.staging.backends")


def compile_module(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    """The GraphModule ``graph`` compiled for inputs like ``examples``; called as it is."""
    compiled: Callable[..., Any] = backends().compile_module(graph, examples)
    return compiled


def compile_now(program: Compilable, told: set[str]) -> None:
    """Compile ``program``; if that fails its graph goes on running, and a warning says so.

    ``told``: the programs of the same jitted function that it was said of.
    """
    started = time.perf_counter()
    try:
        program.executable = backends().compile_graph(program.traced.graph)
    except Exception as error:  # whatever the compiler trips over
        if not exiting():  # then it gets no threads any more, and nobody asks for the program
            warn_failed(program.__name__, error, told)
        return
    program.compiled_in = time.perf_counter() - started


def exiting() -> bool:
    """True while the interpreter waits for the threads that are left."""
    return not threading.main_thread().is_alive()


_NO_COMPILER = "no C++ compiler"
_told: set[str] = set()


def warn_failed(name: str, error: Exception, told: set[str]) -> None:
    """Say once that a program is not compiled; once at all if there is no C++ compiler."""
    without = "InvalidCxxCompiler" in f"{type(error).__name__}: {error}"
    once, subject = (_told, _NO_COMPILER) if without else (told, name)
    if subject in once:
        return
    once.add(subject)
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    warnings.warn(
        f"jit of {name}: the compiler failed ({type(error).__name__}: {reason}). Its traced graph "
        f"runs operator by operator, with the same values. backend='eager' asks for that.",
        CompileWarning,
        stacklevel=2,
    )


Waiting = tuple[weakref.ref[Any], set[str]]
_lock = Lock()


class Worker:
    """The thread that compiles; there is one as long as something waits.

    The interpreter waits for it on exit, for a program that is half compiled: torch's C++ would
    abort the process. A forked child has no such thread, and finds what was waiting.
    """

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._compiling: Waiting | None = None
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._renew)

    def put(self, program: Compilable, told: set[str]) -> None:
        """Compile ``program`` in its turn; not at all if it is dropped before."""
        with _lock:
            self._waiting.append((weakref.ref(program), told))
            running = self._thread is not None and self._thread.is_alive()
            if not (running or exiting()):
                self._thread = threading.Thread(target=self._work, name="fxforms.jit compiler")
                self._thread.start()

    def _renew(self) -> None:
        if self._compiling is not None:
            self._waiting.appendleft(self._compiling)
        self._thread = self._compiling = None

    def _next(self) -> Waiting | None:
        """What is to be compiled now; None ends the thread."""
        with _lock:
            self._compiling = None
            if self._waiting and not exiting():
                self._compiling = self._waiting[0]
                self._waiting.popleft()  # after that, for a fork in between must not lose it
            else:
                self._thread = None
            return self._compiling

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            ref, told = waiting
            program = ref()
            if program is not None:
                try:
                    compile_now(program, told)
                except Warning as warning:  # made an error, and nobody waits for this thread
                    logger.warning("%s", warning)
            del program


_worker = Worker()


def compile_soon(program: Compilable, told: set[str]) -> None:
    """Compile ``program`` in the background."""
    _worker.put(program, told)


def leave_as_graph(program: Compilable, told: set[str]) -> None:
    """Nothing: the graph is what runs (backend="eager")."""
