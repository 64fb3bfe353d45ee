"""Tensors of a transform that a Function's body closes over, or finds inside an argument.

A body runs with the levels lowered. A tensor that it was not given would be taken there for a
constant, and its derivative be lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType as PythonFunction
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import is_atom
from fxforms.errors import UnsupportedError, describe
from fxforms.functions.packed import Packing
from fxforms.functions.unseen import hidden_tensors

_DEPTH = 3  # a decorator's method closes over the user's function, and that over the tensor


def closing(functions: list[Callable[..., Any] | None]) -> list[PythonFunction]:
    """Those of ``functions`` that close over anything."""
    return [f for f in functions if isinstance(f, PythonFunction) and f.__closure__]


def captured(function: PythonFunction, depth: int = _DEPTH) -> Iterator[Any]:
    """What ``function`` closes over, and the functions among that in turn."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
        yield value
        if depth and isinstance(value, PythonFunction):
            yield from captured(value, depth - 1)


def check_arguments(name: str, operands: tuple[Any, ...]) -> None:
    """Raise UnsupportedError if an argument that is no pytree holds a tensor of a transform."""
    for operand in operands:
        if isinstance(operand, (torch.Tensor, Packing)) or is_atom(operand):
            continue
        for tensor in hidden_tensors(operand):
            if substrate.level_of(tensor) > 0:
                raise UnsupportedError(
                    f"{name} was given {describe(operand)} that holds a tensor of a transform "
                    f"(level {substrate.level_of(tensor)}, shape {tuple(tensor.shape)}), which its "
                    f"rules do not see. Pass the tensor to it as an argument of its own."
                )


def check_closures(name: str, functions: list[PythonFunction]) -> None:
    """Raise UnsupportedError if a rule closes over a tensor of a transform that is under way."""
    for function in functions:
        for value in captured(function):
            if isinstance(value, torch.Tensor) and substrate.level_of(value) > 0:
                raise UnsupportedError(
                    f"{name} closes over a tensor of a transform (level "
                    f"{substrate.level_of(value)}, shape {tuple(value.shape)}), which its rules do "
                    f"not see. Pass the tensor to it as an argument."
                )
