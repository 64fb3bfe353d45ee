"""Tensors of a transform that a Function's body closes over, or finds inside an argument.

A body runs with the levels lowered. A tensor that it was not given would be taken there for a
constant, and its derivative be lost without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType as PythonFunction
from types import MethodType, ModuleType
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import is_atom
from fxforms.errors import UnsupportedError, describe
from fxforms.functions.packed import Packing
from fxforms.functions.unseen import closed_over, hidden_tensors

_MOST = 1000  # values looked at
_ATOMS = (int, float, complex, str, bytes, type(None), type, ModuleType, torch.dtype, torch.device)
_CONTAINERS = (list, tuple, set, frozenset)


@functools.cache
def holds_nothing(kind: type) -> bool:
    """True if values of type ``kind`` hold no tensor that a rule could read."""
    return issubclass(kind, _ATOMS)


def closing(functions: list[Callable[..., Any] | None]) -> list[Any]:
    """Those of ``functions`` that hold anything: a closure, defaults, an instance."""
    return [
        f for f in functions if f is not None and (not isinstance(f, PythonFunction) or held(f))
    ]


def held(value: Any) -> list[Any]:
    """What ``value`` holds that a rule could read by way of it."""
    if isinstance(value, PythonFunction):
        found = closed_over(value)
        if value.__defaults__:
            found += value.__defaults__
        return [*found, *value.__kwdefaults__.values()] if value.__kwdefaults__ else found
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, _CONTAINERS):
        return [*value]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    return [*getattr(value, "__dict__", {}).values()]


def captured(
    functions: list[Any], more: Callable[[Any], Iterable[Any]] = lambda value: ()
) -> Iterator[torch.Tensor]:
    """The tensors that ``functions`` hold, at any depth of functions, containers and objects.

    ``more`` gives what a value holds beside that.
    """
    waiting, seen = [*functions], set()
    for value in waiting:
        kind: Any = type(value)
        if isinstance(value, torch.Tensor):
            yield value
        elif not (holds_nothing(kind) or id(value) in seen):
            seen.add(id(value))
            if len(waiting) < _MOST:
                waiting += [*held(value), *more(value)]


def check_arguments(name: str, operands: tuple[Any, ...]) -> None:
    """Raise UnsupportedError if an argument that is no pytree holds a tensor of a transform."""
    for operand in operands:
        if isinstance(operand, (torch.Tensor, Packing)) or is_atom(operand):
            continue
        for tensor in hidden_tensors(operand):
            if substrate.level_of(tensor) > 0:
                raise UnsupportedError(
                    f"{name} was given {describe(operand)} that holds {unseen(tensor)} of its own."
                )


def check_closures(name: str, functions: list[Any]) -> None:
    """Raise UnsupportedError if a rule closes over a tensor of a transform that is under way."""
    for tensor in captured(functions):
        if substrate.level_of(tensor) > 0:
            raise UnsupportedError(f"{name} closes over {unseen(tensor)}.")


def unseen(tensor: torch.Tensor) -> str:
    """What ``tensor`` is, and what to do; the end of the sentence is left open."""
    return (
        f"a tensor of a transform (level {substrate.level_of(tensor)}, shape "
        f"{tuple(tensor.shape)}), which its rules do not see. Pass the tensor to it as an argument"
    )
