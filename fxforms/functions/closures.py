"""Tensors of a transform that a Function's body closes over, or finds inside an argument.

A body runs with the levels lowered. A tensor that it was not given would be taken there for a
constant, and its derivative be lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType as PythonFunction
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import is_atom
from fxforms.errors import UnsupportedError, describe
from fxforms.functions.packed import Packing
from fxforms.functions.unseen import held, hidden_tensors


def closing(functions: list[Callable[..., Any] | None]) -> list[Any]:
    """Those of ``functions`` that hold anything: a closure, defaults, an instance."""
    return [
        f for f in functions if f is not None and (not isinstance(f, PythonFunction) or held(f))
    ]


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
    for tensor in hidden_tensors(functions):
        if substrate.level_of(tensor) > 0:
            raise UnsupportedError(f"{name} closes over {unseen(tensor)}.")


def unseen(tensor: torch.Tensor) -> str:
    """What ``tensor`` is, and what to do; the end of the sentence is left open."""
    return (
        f"a tensor of a transform (level {substrate.level_of(tensor)}, shape "
        f"{tuple(tensor.shape)}), which its rules do not see. Pass the tensor to it as an argument"
    )
