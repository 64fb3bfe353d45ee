"""The derivative of what a ``forward`` saved, taken from its body.

See NOTE [derivative of a residual] in ``functions/combined.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms.errors import GradientError
from fxforms.functions.derive import Like, pull
from fxforms.interpreters import grad_level

Body = Callable[[tuple[Any, ...]], Sequence[Any]]

_LEAVES_TORCH = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.__float__,
        torch.Tensor.data_ptr,
    }
)
_ALIASES = frozenset({torch.Tensor.detach, torch.Tensor.data.__get__})  # type: ignore[attr-defined]


class Tracked(TorchFunctionMode):
    """Runs a body at ``level`` with recording on, and notes if a tracked value leaves torch."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level
        self.left_torch = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own = substrate.level_depth() == self.level  # a transform that forward calls is its own
        if func is substrate.set_grad_enabled and own:
            return None
        if func in _ALIASES and own:
            return args[0].view_as(args[0])
        if func in _LEAVES_TORCH and args[0].requires_grad:
            self.left_torch = True
            args = (substrate.base_value(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


class Noted(TorchFunctionMode):
    """Notes if a floating value leaves torch in a body."""

    left_torch = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _LEAVES_TORCH and Like.of(args[0]) is not None:
            self.left_torch = True
        return func(*args, **(kwargs or {}))


def values_kept(name: str) -> str:
    """The error for a second derivative through numbers that a body kept on ctx."""
    return (
        f"{name}: a second derivative needs the derivative of what forward kept on ctx for "
        f"backward, and forward took it out of torch (NumPy, .item()), so that there are no "
        f"residuals to differentiate. Keep tensors, computed in torch."
    )


def pull_residuals(
    name: str, body: Body, operands: tuple[Any, ...], cotangents: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """One gradient for each of ``operands``: the vjp of the residuals that ``body`` returns.

    Raises:
        GradientError: a tracked value left torch on the way.
    """
    with grad_level() as level, Tracked(level) as tracked:
        leaves, inner = [], []
        for operand in operands:
            if Like.of(operand) is not None:
                operand = substrate.make_leaf(operand, level)
                leaves.append(operand)
            inner.append(operand)
        residuals = body(tuple(inner))
    chosen = [(r, ct) for r, ct in zip(residuals, cotangents) if ct is not None]
    if tracked.left_torch and chosen:
        shapes = ", ".join(str(tuple(residual.shape)) for residual, _ in chosen)
        raise GradientError(
            f"{name}: a second derivative needs the derivative of what forward saved for backward "
            f"(residuals of shape {shapes}), and forward leaves torch (NumPy, .item()) where it "
            f"computes them. Save only inputs and outputs, or compute the residual in torch."
        )
    found = iter(pull([r for r, _ in chosen], [ct for _, ct in chosen], leaves))
    return [None if Like.of(x) is None else next(found) for x in operands]
