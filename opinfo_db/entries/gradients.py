"""Gradients that are scaled, reversed, clipped or stopped, by design.

The oracle is :func:`~opinfo_db.entries.straight_through.straight`, in plain torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import Capability, OpInfo, Waiver
from opinfo_db.entries.making import (
    POSITIVE,
    one_tensor,
    samples,
)
from opinfo_db.entries.straight_through import designed_entry, straight


class GradientScale(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: int) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.factor * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, factor: None) -> Any:
        return ctx.factor * t


class GradientReversal(fxforms.Function):
    """Of domain-adversarial training (Ganin and Lempitsky 2015); the strength is a tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, strength: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (strength,) = ctx.saved_tensors
        return -strength * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Any:
        (strength,) = ctx.saved_tensors
        return -strength * t


class GradientClip(fxforms.Function):
    """Clips the cotangent, so the backward is not linear and there is no jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, limit: float) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.limit = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g.clamp(-ctx.limit, ctx.limit), None


class StopGradient(fxforms.Function):
    """Zero, not ``None``: downstream code gets a tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.zeros_like(g)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return torch.zeros_like(t)


#: No forward mode can be derived from a backward that is not linear.
NOT_LINEAR = frozenset(
    {
        Capability.JVP,
        Capability.DOUBLE_JVP,
        Capability.FORWARD_OVER_REVERSE,
        Capability.REVERSE_OVER_FORWARD,
    }
)


def _clipped(x: Tensor, limit: float) -> Tensor:
    """The oracle of :class:`GradientClip`: a hook on an intermediate."""
    y = x.clone()
    if y.requires_grad:
        y.register_hook(lambda g: 2 * (g / 2).clamp(-limit, limit))  # type: ignore[no-untyped-call]
    return 2 * y


ENTRIES: tuple[OpInfo, ...] = (
    designed_entry(
        GradientScale, one_tensor(lambda m: m, 3), lambda x, factor: straight(x, factor * x)
    ),
    designed_entry(
        GradientReversal,
        samples(
            lambda m: (m(), m(grad=False)),
            lambda m: (m(3), m(grad=False)),
            lambda m: (m.transposed(2, 3), m(grad=False)),
        ),
        lambda x, strength: straight(x, -strength * x),
    ),
    designed_entry(
        GradientClip,
        one_tensor(lambda m: m, 0.25),
        _clipped,
        without=NOT_LINEAR,
        expected_failures=(
            Waiver(
                "vjp_linear",
                "a clipped gradient is not linear, by design",
                samples=frozenset({"sample0", "sample1", "sample3"}),
            ),
        ),
    ),
    designed_entry(StopGradient, POSITIVE, lambda x: straight(x, 0 * x)),
)
