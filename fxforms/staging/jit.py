"""``jit``: a function traced once a signature and compiled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from fxforms.errors import ArgumentError, describe, name_of
from fxforms.staging import compiler
from fxforms.staging.jitted import Jitted
from fxforms.staging.method import Method

_Kind = inspect.Parameter

_START: dict[tuple[str, str], Callable[..., None]] = {
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
        ArgumentError: ``func`` is no function, an option is unknown or names no argument, or an
            argument is neither tensor nor hashable.
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
    if not callable(func):
        raise ArgumentError(
            f"jit takes a function, got {describe(func)}. Options are given by name: "
            f"jit(f, static_argnums=1)."
        )
    if (backend, compile) not in _START:
        raise ArgumentError(
            f"jit of {name_of(func)}: backend={backend!r}, compile={compile!r}. The backends are "
            f"'inductor' and 'eager'; compile is 'background' or 'wait'."
        )
    argnames = frozenset([static_argnames] if isinstance(static_argnames, str) else static_argnames)
    static, donated = positions(static_argnums), positions(donate_argnums)
    check_options(func, static | donated, argnames)
    start = functools.partial(_START[backend, compile], told=set())
    return Jitted(func, static, argnames, donated, dynamic, start)


def positions(argnums: int | Iterable[int]) -> frozenset[int]:
    """``argnums`` as a set."""
    return frozenset([argnums] if isinstance(argnums, int) else argnums)


def check_options(func: Callable[..., Any], nums: frozenset[Any], names: frozenset[Any]) -> None:
    """Raise ArgumentError for a position or a name that ``func`` has no argument for."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):  # a function in C tells no signature
        return
    kinds = [x.kind for x in parameters.values()]
    count = sum(kind in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD) for kind in kinds)
    if _Kind.VAR_POSITIONAL not in kinds:
        for num in nums:
            if not isinstance(num, int) or not -count <= num < count:
                raise ArgumentError(
                    f"jit of {name_of(func)}: there is no argument at position {num!r} for "
                    f"static_argnums or donate_argnums; the function takes {count} by position."
                )
    if _Kind.VAR_KEYWORD not in kinds:
        for name in names:
            if name not in parameters:
                raise ArgumentError(
                    f"jit of {name_of(func)}: static_argnames has {name!r}, and the arguments "
                    f"are {', '.join(parameters) or 'none'}."
                )


def as_jitted(func: Callable[..., Any]) -> Jitted | Method:
    """``func`` if it is a jitted function, else one of it that is only traced."""
    if isinstance(func, Jitted | Method):
        return func
    jitted: Jitted = jit(func, backend="eager")
    return jitted
