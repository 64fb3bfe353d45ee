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


class DifferentiatedOnce(torch.autograd.Function):
    """The first ``count`` of ``tensors``, made to depend on the rest; has no derivative."""

    _rules: Any

    @staticmethod
    def forward(name: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([tensor.view_as(tensor) for tensor in tensors[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise GradientError(
            f"{ctx.name}.backward is marked once_differentiable and was differentiated a second "
            f"time. Write it in differentiable torch operations and drop the decorator."
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return DifferentiatedOnce.backward(ctx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *operands: Any) -> Any:
        count = operands[1]
        return DifferentiatedOnce._rules.bind(*operands), in_dims[2 : 2 + count]


def guard(
    name: str, values: Sequence[torch.Tensor | None], sources: Iterable[Any]
) -> list[torch.Tensor | None]:
    """``values``, computed by a rule of ``name`` from the tensors in ``sources``, guarded."""
    given = [value for value in values if value is not None]
    tensors = [x for x in sources if isinstance(x, torch.Tensor)]
    guarded = iter(DifferentiatedOnce._rules.bind(name, len(given), *given, *tensors))
    return [None if value is None else next(guarded) for value in values]


def run_once(
    name: str,
    rule: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]],
    ctx: Any,
    cotangents: tuple[Any, ...],
) -> tuple[Any, ...]:
    """The backward ``rule`` of the Function ``name`` without recording, its result guarded."""
    with torch.no_grad():
        result = rule(ctx, cotangents)
    flat, spec = flatten(result)
    sources = flatten([cotangents, ctx.saved_tensors, attributes_of(ctx)])[0]
    gradients: Any = spec.unflatten(guard(name, flat, sources))
    return tuple(gradients)
