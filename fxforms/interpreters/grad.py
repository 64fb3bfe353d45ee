"""Reverse mode: the level of ``grad`` and ``vjp``."""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import map_tensors
from fxforms.interpreters.stack import Interpreter, Lowered, Primitive


class GradInterpreter(Interpreter):
    """Records a call of the operator as one node of this level's autograd graph."""

    transform = "grad"

    def process(self, fn: Primitive, operands: tuple[Any, ...]) -> Any:
        """Attach ``fn``'s node, or pass the call down where nothing here is differentiated."""
        operands = self.lift(operands)
        if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in operands
        ):
            return fn.grad_rule(*operands)
        inner = self.unwrap(operands)
        with self.lower(torch.is_grad_enabled(), None):
            outputs = fn.bind(*inner)
        return self.wrap(outputs, inner, operands)

    def lift(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """``operands`` with those captured from lower levels as constants of this one.

        A node would otherwise take what they carry at another level for its own.
        """
        level, level_of = self.level, substrate.level_of
        return tuple(
            [
                self.capture(x) if isinstance(x, torch.Tensor) and level_of(x) != level else x
                for x in operands
            ]
        )

    def capture(self, operand: torch.Tensor) -> torch.Tensor:
        """``operand`` of a lower level as a constant, marked so that a change of it is refused."""
        captured = substrate.wrap_for_grad(operand, self.level)
        captured.is_captured = True  # type: ignore[attr-defined]
        return captured

    def unwrap(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """``operands`` as the next lower level sees them."""
        level, unwrap = self.level, substrate.unwrap_for_grad
        return tuple([unwrap(x, level) if isinstance(x, torch.Tensor) else x for x in operands])

    def wrap(self, outputs: Any, inner: tuple[Any, ...], operands: tuple[Any, ...]) -> Any:
        """``outputs`` at this level; an operand that was returned stays the same object."""
        level = self.level

        def wrap_one(output: torch.Tensor) -> torch.Tensor:
            for before, operand in zip(inner, operands):
                if output is before:
                    return operand  # type: ignore[no-any-return]
            return substrate.wrap_for_grad(output, level)

        return map_tensors(wrap_one, outputs)

    def lower(self, grad: bool = True, forward: bool | None = True) -> Lowered:
        """Pop this level; lower levels record if ``grad`` and the mode outside the level allow.

        See NOTE [grad mode crosses levels] in ``interpreters/levels.py``.
        """
        return Lowered(grad and substrate.GradHandle(self._handle).prevGradMode(), forward)
