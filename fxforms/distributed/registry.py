"""What a peer may name: registered functions and classes, and torch's built-in operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import torch

from fxforms._tree import register_dataclass
from fxforms.errors import ArgumentError, describe, name_of

_T = TypeVar("_T", bound=Callable[..., Any])

_registered: dict[str, Callable[..., Any]] = {}
_names: dict[Any, str] = {}
_own: set[Callable[..., Any]] = set()

# They touch files, or end the process.
_FORBIDDEN = frozenset({"from_file", "save"})


def register(fn: _T) -> _T:
    """Let other workers call ``fn`` here, by its name ``module:qualname``; also a decorator.

    A worker runs nothing that is not registered in its own process, so the module that defines
    ``fn`` must be imported there too. A registered class can be made by a remote call, its public
    methods can be called through an ``RRef``, and, if it is a named tuple, a dataclass or an
    exception, its values travel. A dataclass becomes a pytree, so that transforms see its tensors.

    Args:
        fn: a function or class that is defined at the top of a module.

    Returns:
        ``fn`` itself.

    Raises:
        ArgumentError: ``fn`` has no name that another process could find, or that of a function
            which it is made of, as ``grad(f)`` has that of ``f``.

    Example:
        >>> from fxforms import distributed
        >>> @distributed.register
        ... def double(x):
        ...     return 2 * x
    """
    name = _name_for(fn)
    if name is None:
        raise ArgumentError(
            f"register({name_of(fn)}): expected a function or class defined at the top of a "
            f"module, got {describe(fn)}. Workers find it by its module and name; move it there."
        )
    known = _registered.get(name)
    if known is not None and known is not fn and (_wraps(fn, known) or _wraps(known, fn)):
        raise ArgumentError(
            f"register({name_of(fn)}): {name} is registered already, and one of the two is made of "
            "the other, so they have one name. Define a function that calls the other one."
        )
    if isinstance(fn, type) and is_dataclass(fn):
        register_dataclass(fn)
    _registered[name] = fn
    _names[fn] = name
    return fn


def register_own(fn: _T) -> _T:
    """`register` a function of this package that runs nothing of the user's.

    The modes of its caller are not applied to it, so it may wait without holding them.
    """
    _own.add(fn)
    return register(fn)


def is_own(fn: Callable[..., Any]) -> bool:
    """True if `register_own` registered ``fn``."""
    return fn in _own


def _wraps(outer: Any, inner: Any) -> bool:
    """True if ``outer`` is made of ``inner``, as by ``functools.wraps``."""
    while outer is not None and outer is not inner:
        outer = getattr(outer, "__wrapped__", None)
    return outer is inner


def _name_for(fn: Any) -> str | None:
    """``module:qualname``, or None for what has no such name."""
    module = getattr(fn, "__module__", None) or "__main__"
    qualname = getattr(fn, "__qualname__", None)
    if not callable(fn) or not isinstance(qualname, str) or "<" in qualname:
        return None
    # A spawned process names the program it was started for so.
    return f"{'__main__' if module == '__mp_main__' else module}:{qualname}"


def registered(name: str) -> Callable[..., Any]:
    """The function or class that is registered under ``name``."""
    try:
        return _registered[name]
    except KeyError:
        raise ArgumentError(
            f"{name} is not registered on this worker. Decorate it with "
            "@fxforms.distributed.register, and import its module in the worker's process."
        ) from None


def registered_class(name: str) -> type | None:
    """The class registered under ``name``, or None."""
    found = _registered.get(name)
    return found if isinstance(found, type) else None


def registered_name(fn: Any) -> str | None:
    """The name under which ``fn`` is registered, or None."""
    try:
        return _names.get(fn)
    except TypeError:  # not hashable
        return None


def operator_name(fn: Any) -> str | None:
    """``aten::add`` for ``torch.add``, or None if ``fn`` is no built-in operator of torch."""
    name = getattr(fn, "__name__", "").split(".")[0]
    if isinstance(fn, _OPERATOR):
        parts = str(fn).split(".")
        name = parts[1] if parts[0] == "aten" else ""
    elif not isinstance(fn, _BUILTIN) or name not in _PUBLIC or getattr(torch, name) is not fn:
        return None
    return f"aten::{name}" if _allowed(name) else None


def operator(name: str) -> Callable[..., Any]:
    """The built-in operator called ``aten::...``."""
    space, _, short = name.partition("::")
    if space != "aten" or not _allowed(short):
        raise ArgumentError(f"{name} is not a built-in operator that a worker runs for another.")
    found: Callable[..., Any] = getattr(torch, short)  # takes what a local call takes
    return found if isinstance(found, _BUILTIN) else getattr(torch.ops.aten, short)


_BUILTIN = (type(torch.add), type(len))
_OPERATOR = (type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor))
_PUBLIC = frozenset(name for name in dir(torch) if not name.startswith("_"))


def _allowed(name: str) -> bool:
    """True for a public operator of torch that reaches nothing but its arguments."""
    return name in _PUBLIC and name not in _FORBIDDEN and hasattr(torch.ops.aten, name)
