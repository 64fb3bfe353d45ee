"""The one operator: whatever is not a plain ATen op enters the level stack here."""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import EscapedTensorError, explain
from fxforms.interpreters import Primitive, current_interpreter


def custom_function_call(fn: Any, *operands: Any) -> Any:
    """Apply ``fn`` to ``operands`` at whatever level is on top of the stack.

    The interpreter of that level applies ``fn``'s rule for its transform, and the rule calls this
    operator again one level down. With no level left, ``fn`` runs under ordinary autograd.

    Args:
        fn: a :class:`fxforms.Function` subclass.
        *operands: what its ``forward`` takes, by position.

    Returns:
        What ``fn.forward`` returns, at the current level.

    Raises:
        TypeError: ``fn`` is not a Function of fxforms.
        RuleError: ``fn`` lacks the rule that a level needs.
        EscapedTensorError: an operand belongs to a ``vmap`` that has ended.

    Example:
        >>> import torch, fxforms
        >>> class Double(fxforms.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * g
        >>> fxforms.custom_function_call(Double, torch.tensor(1.5))
        tensor(3.)
    """
    rules = getattr(fn, "_rules", None)
    if rules is None:
        raise TypeError(
            f"custom_function_call expects a subclass of fxforms.Function, got {fn!r}. A plain "
            f"torch.autograd.Function is called by its own apply."
        )
    return rules.enter(operands)


def bind(primitive: Primitive, operands: tuple[Any, ...]) -> Any:
    """The operator on an instance that is already resolved to its rules."""
    operands = live(operands)
    if not substrate.transforms_active():
        try:
            return primitive.evaluate(*operands)
        except RuntimeError as error:
            explain(error, f"{primitive.__name__}.apply")
            raise
    check_levels(primitive, operands)
    return current_interpreter().process(primitive, operands)


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
