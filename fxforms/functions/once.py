"""``once_differentiable``: a backward whose result must not be differentiated again.

torch's decorator marks the result where a cotangent requires grad, and gives a silent zero where
only a saved tensor does. Here the result passes through a Function of its own, together with
everything it was computed from, so that each level sees the dependence and refuses to follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten
from fxforms.errors import GradientError
from fxforms.functions.context import attributes_of

once_differentiable = substrate.torch_once_differentiable
_WRAPPER = once_differentiable(len).__code__


def is_once_differentiable(backward: Any) -> bool:
    """True if ``backward`` was decorated with ``once_differentiable``."""
    return getattr(backward, "__code__", None) is _WRAPPER


def undecorated(backward: Any) -> Any:
    """``backward`` without ``once_differentiable``."""
    return backward.__wrapped__ if is_once_differentiable(backward) else backward


class DifferentiatedOnce(torch.autograd.Function):
    """The first ``count`` of ``tensors``, made to depend on the rest; has no derivative."""

    _rules: Any

    @staticmethod
    def forward(reason: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([tensor.view_as(tensor) for tensor in tensors[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.reason = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise GradientError(ctx.reason)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return DifferentiatedOnce.backward(ctx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *operands: Any) -> Any:
        count = operands[1]
        return DifferentiatedOnce._rules.bind(*operands), in_dims[2 : 2 + count]


def guard(
    reason: str, values: Sequence[torch.Tensor | None], sources: Iterable[Any]
) -> list[torch.Tensor | None]:
    """``values``, computed from the tensors in ``sources``; their derivative raises ``reason``."""
    given = [value for value in values if value is not None]
    tensors = [x for x in sources if isinstance(x, torch.Tensor)]
    guarded = iter(DifferentiatedOnce._rules.bind(reason, len(given), *given, *tensors))
    return [None if value is None else next(guarded) for value in values]


def marked_once(name: str) -> str:
    """The error for a second derivative of a ``once_differentiable`` backward."""
    return (
        f"{name}.backward is marked once_differentiable and was differentiated a second time. "
        f"Write it in differentiable torch operations and drop the decorator."
    )


def run_once(
    reason: str,
    rule: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]],
    ctx: Any,
    cotangents: tuple[Any, ...],
) -> tuple[Any, ...]:
    """The backward ``rule`` without recording; differentiating its result raises ``reason``."""
    with torch.no_grad():
        result = rule(ctx, cotangents)
    flat, spec = flatten(result)
    inputs = [x for x, _ in getattr(ctx, "_fx_operands", None) or ()]  # of plain autograd
    sources = flatten([cotangents, ctx.saved_tensors, attributes_of(ctx), inputs])[0]
    gradients: Any = spec.unflatten(guard(reason, flat, sources))
    return tuple(gradients)
