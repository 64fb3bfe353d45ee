"""``jit``: a function traced once a signature and compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from fxforms.errors import ArgumentError, name_of
from fxforms.staging import compiler
from fxforms.staging.jitted import Jitted

_START: dict[tuple[str, str], Callable[[Any], None]] = {
    ("inductor", "background"): compiler.compile_soon,
    ("inductor", "wait"): compiler.compile_now,
    ("eager", "background"): compiler.leave_as_graph,
    ("eager", "wait"): compiler.leave_as_graph,
}


def jit(
    func: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    dynamic: bool = False,
    backend: str = "inductor",
    compile: str = "background",
) -> Any:
    """``func`` traced once for each signature of its arguments, and compiled.

    The first call with new shapes, dtypes or static values traces ``func`` on tensors that have no
    values, with all transforms inside of it, and answers from the traced graph; the compiled code
    takes over when it is ready. A later call costs a check of the signature and the compiled code.

    Tensors that ``func`` captures stay references: a change of theirs in place is seen. A captured
    Python value that changes makes the next call trace again.

    Args:
        func: takes and returns pytrees. Left out, ``jit`` is a decorator with arguments.
        static_argnums: positions of arguments that are Python values for the whole trace. Leaves
            that are no tensors are static wherever they stand.
        static_argnames: the same for keyword arguments.
        donate_argnums: positions of arguments that the caller gives up: outputs of the same shape
            are written into their memory, and what they hold afterwards is undefined.
        dynamic: trace once for all sizes; else once for each.
        backend: ``"inductor"`` compiles; ``"eager"`` runs the traced graph.
        compile: ``"background"``, or ``"wait"`` for the compiled code before the first answer.

    Returns:
        A function of the same arguments, with ``cache_info()`` and ``clear_cache()``. It may be
        called under any transform, which is then taken of ``func`` and staged as well.

    Raises:
        ArgumentError: an option is unknown, or an argument is neither tensor nor hashable.
        TraceError: ``func`` asks for the value of a traced tensor.

    Example:
        >>> import torch, fxforms
        >>> slope = fxforms.jit(fxforms.grad(lambda x: (x**3).sum()))
        >>> slope(torch.tensor([1.0, 2.0]))
        tensor([ 3., 12.])
    """
    if func is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            dynamic=dynamic,
            backend=backend,
            compile=compile,
        )
    if (backend, compile) not in _START:
        raise ArgumentError(
            f"jit of {name_of(func)}: backend={backend!r}, compile={compile!r}. The backends are "
            f"'inductor' and 'eager'; compile is 'background' or 'wait'."
        )
    argnames = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
    static, donated = positions(static_argnums), positions(donate_argnums)
    start = _START[backend, compile]
    return Jitted(func, static, frozenset(argnames), donated, dynamic, start)


def positions(argnums: int | Iterable[int]) -> frozenset[int]:
    """``argnums`` as a set."""
    return frozenset([argnums] if isinstance(argnums, int) else argnums)


def as_jitted(func: Callable[..., Any]) -> Jitted:
    """``func`` if it is a jitted function, else one of it that is only traced."""
    jitted: Jitted = func if isinstance(func, Jitted) else jit(func, backend="eager")
    return jitted
