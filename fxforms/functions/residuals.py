"""The derivative of what a ``forward`` saved, taken from its body.

See NOTE [derivative of a residual] in ``functions/combined.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms.errors import GradientError
from fxforms.functions.derive import Like, pull
from fxforms.functions.draws import check_repeated
from fxforms.functions.inline import batched_on_top
from fxforms.functions.inner_engine import CUTS, ENGINE, REQUIRES, Recorded
from fxforms.interpreters import below_all_levels, grad_level
from fxforms.interpreters.stack import Lowered

Body = Callable[[tuple[Any, ...]], Sequence[Any]]

_LEAVES_TORCH = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.__float__,
        torch.Tensor.data_ptr,
        torch.Tensor.storage,
        torch.Tensor.untyped_storage,
    }
)
_CUTS = CUTS | REQUIRES | ENGINE


class Tracked(Recorded):
    """Runs a body with recording on, and notes if a tracked value leaves torch."""

    def __init__(self) -> None:
        super().__init__()
        self.left_torch = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LEAVES_TORCH and args[0].requires_grad:
            self.left_torch = True
            return outside(func, args, kwargs)
        return self.recorded(func, args, kwargs) if self.own() else func(*args, **kwargs)


class LeavesTorch(Exception):
    """A body that is traced leaves torch: there is no value to go on with."""


def outside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` on the number behind a tracked tensor; torch's error if that is a batch."""
    if substrate.dispatch_modes():
        raise LeavesTorch
    value = substrate.base_value(args[0])
    if substrate.is_batched(value):
        return func(value, *args[1:], **kwargs)
    with below_all_levels():
        return func(value.detach(), *args[1:], **kwargs)


class Noted(TorchFunctionMode):
    """Notes if a floating value leaves torch in a body, or is cut off from what it depends on.

    That is: detached, computed by the engine, without recording or in inference mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_torch = False
        self.cut = False
        self.inference = torch.is_inference_mode_enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _LEAVES_TORCH and Like.of(args[0]) is not None:
            self.left_torch = True
        if not self.inference and torch.is_inference_mode_enabled():
            self.cut = True
        if func in _CUTS or (func is substrate.set_grad_enabled and args == (False,)):
            self.cut = True
        return func(*args, **(kwargs or {}))


class Rerun(NamedTuple):
    """A body that ran again on tracked inputs; no result if it was traced and left torch."""

    result: Any
    leaves: list[torch.Tensor]
    left_torch: bool


class below_idle_vmaps(contextlib.ExitStack):
    """A context without the top levels that are a vmap with no batch among ``operands``."""

    def __init__(self, operands: tuple[Any, ...]) -> None:
        super().__init__()
        self._operands = operands

    def __enter__(self) -> below_idle_vmaps:
        while substrate.on_vmap_level() and not batched_on_top(self._operands):
            self.enter_context(Lowered())
        return self


def run_again(body: Callable[[tuple[Any, ...]], Any], operands: tuple[Any, ...]) -> Rerun:
    """``body(operands)`` at a grad level of its own, the tensors among ``operands`` its leaves.

    It runs below a vmap of which no operand has a sample, such as that of the rows of a Jacobian:
    random numbers are drawn as in the call itself, which was outside of it.
    """
    with below_idle_vmaps(operands), grad_level() as level, Tracked() as tracked:
        leaves, inner = [], []
        for operand in operands:
            if Like.of(operand) is not None:
                operand = substrate.make_leaf(operand, level)
                leaves.append(operand)
            inner.append(operand)
        try:
            result = body(tuple(inner))
        except LeavesTorch:
            result = None
        return Rerun(result, leaves, tracked.left_torch)


def pull_residuals(
    name: str,
    body: Body,
    operands: tuple[Any, ...],
    saved: Sequence[torch.Tensor | None],
    cotangents: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """One gradient for each of ``operands``: the vjp of the residuals that ``body`` returns.

    ``saved`` are the residuals as the call itself left them.

    Raises:
        GradientError: a tracked value left torch on the way, or the residuals are others now.
    """
    again = run_again(body, operands)
    if again.left_torch and any(ct is not None for ct in cotangents):
        shapes = ", ".join(str(tuple(ct.shape)) for ct in cotangents if ct is not None)
        raise GradientError(
            f"{name}: a second derivative needs the derivative of what forward saved for backward "
            f"(residuals of shape {shapes}), and forward leaves torch (NumPy, .item()) where it "
            f"computes them. Save only inputs and outputs, or compute the residual in torch."
        )
    chosen = [(r, ct) for r, ct in zip(again.result, cotangents) if ct is not None]
    check_repeated(name, saved, again.result)
    found = iter(pull([r for r, _ in chosen], [ct for _, ct in chosen], again.leaves))
    return [None if Like.of(x) is None else next(found) for x in operands]
