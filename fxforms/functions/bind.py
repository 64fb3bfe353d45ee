"""One step of the operator: the interpreter of the top level, or the body where none is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import EscapedTensorError, TraceError, translate
from fxforms.functions.opaque import ValueNeeded
from fxforms.interpreters import Primitive, current_interpreter


def bind(primitive: Primitive, operands: tuple[Any, ...]) -> Any:
    """The operator on an instance that is already resolved to its rules."""
    operands = live(operands)
    if not substrate.transforms_active():
        return run_plain(primitive, operands)
    check_levels(primitive, operands)
    return current_interpreter().process(primitive, operands)


def bind_lower(primitive: Primitive, operands: tuple[Any, ...]) -> Any:
    """The same on operands of a level above that are unwrapped: none is of a level too high."""
    if not substrate.transforms_active():
        return bind(primitive, operands)
    return current_interpreter().process(primitive, live(operands))


def run_plain(primitive: Primitive, operands: Sequence[Any]) -> Any:
    """The body, where no level is left, under plain autograd."""
    versions = traced_versions(operands)
    try:
        return primitive.evaluate(*operands)
    except ValueNeeded as error:
        check_unchanged(primitive, operands, versions)
        return primitive.staged(error, operands)
    except RuntimeError as error:
        translate(error, f"{primitive.__name__}.apply")
        raise


def traced_versions(operands: Sequence[Any]) -> list[int]:
    """The versions of ``operands`` while a trace runs, for a body may have to be staged."""
    return substrate.versions(tuple(operands)) if substrate.dispatch_modes() else []


def check_unchanged(primitive: Primitive, operands: Sequence[Any], versions: list[int]) -> None:
    """Raise TraceError if a body that is to run anew as a call node has changed an operand."""
    if versions != traced_versions(operands):
        raise TraceError(
            f"{primitive.__name__}.forward changed its input in place and then left torch (NumPy, "
            f".item()), so jit can neither trace it nor call it anew. Leave torch before the "
            f"change, or change a clone."
        )


def live(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """``operands`` with the wrappers of ended grad levels taken off, as torch's own ops do.

    A graph that ``vjp`` kept holds such wrappers.
    """
    unwrap = substrate.unwrap_if_dead
    return tuple([unwrap(x) if isinstance(x, torch.Tensor) else x for x in operands])


def check_levels(primitive: Primitive, operands: tuple[Any, ...]) -> None:
    """Raise EscapedTensorError if an operand belongs to a level above the current one."""
    current = substrate.current_level()
    for index, operand in enumerate(operands):
        if isinstance(operand, torch.Tensor) and substrate.level_of(operand) > current:
            raise EscapedTensorError(
                f"{primitive.__name__}.apply: argument {index} is a tensor of a vmap that has "
                f"ended (the level is now {current}). Return it from the mapped function instead "
                f"of storing it."
            )
