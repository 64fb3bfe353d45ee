"""Traced tensors that a function leaves behind, in a list, an attribute or a variable.

Such a tensor has no value after the trace. The function would have to leave a new one at every
call, and a graph does nothing but compute: so this is an error, and what was there before is put
back.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fxforms.errors import TraceError
from fxforms.staging.watch import is_traced

Holder = tuple[str, Any]  # how a message calls it, and a cell, list or dict


def nested(label: str, holder: Any, seen: set[int]) -> Iterator[Holder]:
    """``holder`` and the lists and dicts in it that are not ``seen``."""
    waiting = [holder]
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        yield label, here
        if not isinstance(here, types.CellType):
            values = list(here.values() if isinstance(here, dict) else here)
            waiting += [x for x in values if isinstance(x, (list, dict))]


def is_leak(value: object) -> bool:
    """True for a traced tensor, and for a container with one in it."""
    held = [x for _, here in nested("", [value], set()) for x in parts(here)]
    return any(isinstance(x, torch.Tensor) and is_traced(x) for x in held)


def parts(holder: list[Any] | dict[Any, Any]) -> list[Any]:
    """What is in a list or dict, and in the tuples in it."""
    values = list(holder.values() if isinstance(holder, dict) else holder)
    return values + [y for x in values if isinstance(x, tuple) for y in x]


class Leaks:
    """What holders held before a trace."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        seen: set[int] = set()
        found = [pair for top, held in holders for pair in nested(top, held, seen)]
        self._before = [(label, x, contents(x)) for label, x in found]

    def take_back(self) -> list[str]:
        """Put back what was there in place of traced tensors; what they were left in.

        What is inside comes first, so that a container found with one outside of it is a new one.
        """
        return [place for entry in reversed(self._before) for place in restore(*entry)]

    def refuse(self, name: str) -> None:
        """Raise TraceError if the trace of the function ``name`` has left a traced tensor."""
        if places := self.take_back():
            raise TraceError(
                f"jit of {name}: the function leaves a traced tensor in {places[0]}, where it has "
                f"no value after the trace. Return the tensor instead and store it in the caller, "
                f"or change a tensor that is there in place (copy_, add_), which jit carries over."
            )


def cell_contents(cell: types.CellType) -> Any:
    """What is in ``cell``; None for nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def contents(holder: Any) -> Any:
    """A shallow copy."""
    if isinstance(holder, types.CellType):
        return [cell_contents(holder)]
    return dict(holder) if isinstance(holder, dict) else list(holder)


def restore(label: str, holder: Any, before: Any) -> list[str]:
    """Where in ``holder`` a traced tensor was found, and is no longer."""
    if isinstance(holder, types.CellType):
        if not is_leak(cell_contents(holder)):
            return []
        holder.cell_contents = before[0]
        return [f"the variable {label!r}"]
    if isinstance(holder, list):
        if not any(map(is_leak, holder)):
            return []
        holder[:] = before
        return [f"a list of {label!r}"]
    leaked = [key for key, value in holder.items() if is_leak(value)]
    for key in leaked:
        put_back(holder, key, before)
    return [f"{key!r} of {label!r}" for key in leaked]


def put_back(holder: dict[Any, Any], key: Any, before: dict[Any, Any]) -> None:
    """The value of ``key`` as it was, or no value."""
    if key in before:
        holder[key] = before[key]
    else:
        del holder[key]


def without_leaks(captures: Any, name: str, trace: Callable[[], Any]) -> Any:
    """What ``trace`` returns, with nothing traced left behind, also where it raises."""
    leaks = Leaks(captures.holders)
    try:
        traced = trace()
    except BaseException:
        leaks.take_back()
        raise
    leaks.refuse(name)
    return traced
