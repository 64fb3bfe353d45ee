"""When a program is compiled: before its first run, or in the background while its graph runs."""

from __future__ import annotations

import importlib
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fxforms.errors import CompileWarning


class Compilable(Protocol):
    """What is asked of a program."""

    __name__: str
    traced: Any
    executable: Any
    compiled_in: float | None


def backends() -> Any:
    """The adapter over the compiler, which is slow to import and not always used."""
    return importlib.import_module("fxforms.staging.backends")


def compile_module(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
    """The GraphModule ``graph`` compiled for inputs like ``examples``; called as it is."""
    compiled: Callable[..., Any] = backends().compile_module(graph, examples)
    return compiled


def compile_now(program: Compilable) -> None:
    """Compile ``program``; if that fails its graph goes on running, and a warning says so."""
    started = time.perf_counter()
    try:
        program.executable = backends().compile_graph(program.traced.graph)
    except Exception as error:  # whatever the compiler trips over
        warn_failed(program.__name__, error)
        return
    program.compiled_in = time.perf_counter() - started


_failed: set[str] = set()
_NO_COMPILER = "no C++ compiler"


def warn_failed(name: str, error: Exception) -> None:
    """Say once a function that it is not compiled; once at all if there is no C++ compiler."""
    without = "InvalidCxxCompiler" in f"{type(error).__name__}: {error}"
    if name in _failed or (without and _NO_COMPILER in _failed):
        return
    _failed.add(_NO_COMPILER if without else name)
    reason = (str(error) or type(error).__name__).strip().splitlines()[0]
    warnings.warn(
        f"jit of {name}: the compiler failed ({type(error).__name__}: {reason}). Its traced graph "
        f"runs operator by operator, with the same values. backend='eager' asks for that.",
        CompileWarning,
        stacklevel=2,
    )


_pending: queue.SimpleQueue[weakref.ref[Any]] = queue.SimpleQueue()
_worker: threading.Thread | None = None
_lock = threading.Lock()


def compile_soon(program: Compilable) -> None:
    """Compile ``program`` in the background; not at all if it is dropped before its turn."""
    global _worker
    _pending.put(weakref.ref(program))
    with _lock:
        if _worker is None or not _worker.is_alive():
            _worker = threading.Thread(target=_work, name="fxforms.jit compiler", daemon=True)
            _worker.start()


def _work() -> None:
    while True:
        program = _pending.get()()
        if program is not None:
            compile_now(program)
        del program


def leave_as_graph(program: Compilable) -> None:
    """Nothing: the graph is what runs (backend="eager")."""
