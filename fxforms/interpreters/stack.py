"""The level stack: entering, leaving and lowering a level, and what an interpreter owes.

The stack is torch's own, one a thread; nothing here is kept beside it. Every context manager
acquires first and restores in ``__exit__``, so that the stack is right after any exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch

from fxforms import _substrate as substrate


class Primitive(Protocol):
    """What an interpreter asks of an instance of the operator.

    Each rule runs with the level of the interpreter lowered.
    """

    __name__: str

    def evaluate(self, *operands: Any) -> Any:
        """The body, with no level active, under ordinary autograd."""

    def staged(self, error: Any, operands: Sequence[Any]) -> Any:
        """The body as one call node of a graph, after ``error`` said that it cannot be traced."""
        raise error

    def bind(self, *operands: Any) -> Any:
        """The operator on ``operands``, at the level now on top."""

    def grad_rule(self, *operands: Any) -> Any:
        """A node of the autograd graph at the level now on top (not lowered) on ``operands``."""

    def jvp_rule(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """``(outputs, tangents of the outputs)``; a tangent is None where it is zero."""

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """``(outputs, out_dims)`` of the whole batch."""


class Interpreter(ABC):
    """A level of one transform: takes a call of the operator one level down."""

    transform: ClassVar[str]

    def __init__(self, handle: Any, level: int) -> None:
        self._handle = handle
        self.level = level

    @abstractmethod
    def process(self, fn: Primitive, operands: tuple[Any, ...]) -> Any:
        """Apply ``fn``'s rule for this transform to ``operands``."""

    def lower(self) -> Lowered:
        """A context in which this level is popped."""
        return Lowered()


class below_all_levels:
    """A context without any level, for making constants at the cost of plain torch."""

    __slots__ = ("_layers",)

    def __enter__(self) -> None:
        self._layers = [substrate.pop_level() for _ in range(substrate.level_depth())]

    def __exit__(self, *error: object) -> None:
        for layer in reversed(self._layers):
            substrate.push_level(layer)


class Lowered:
    """Pops the top level, and pushes it again on exit, with the grad modes as they were.

    ``grad`` and ``forward`` set the reverse and forward grad modes for the lower levels; None
    leaves a mode alone.
    """

    __slots__ = ("_forward", "_grad", "_layer", "_modes")

    def __init__(self, grad: bool | None = None, forward: bool | None = None) -> None:
        self._grad = grad
        self._forward = forward

    def __enter__(self) -> None:
        self._layer = substrate.pop_level()
        self._modes = torch.is_grad_enabled(), substrate.forward_grad_enabled()
        if self._grad is not None:
            substrate.set_grad_enabled(self._grad)
        if self._forward is not None:
            substrate.set_forward_grad_enabled(self._forward)

    def __exit__(self, *error: object) -> None:
        substrate.set_grad_enabled(self._modes[0])
        substrate.set_forward_grad_enabled(self._modes[1])
        substrate.push_level(self._layer)
