"""Straight-through estimators and surrogate gradients: derivatives not those of the forward.

The oracle is the usual trick: ``y = designed + (forward - designed).detach()`` in plain torch has
the value of the forward and the derivative of ``designed``. Finite differences are off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import Maker, entry, one_tensor, samples


def straight(value: Tensor, designed: Tensor) -> Tensor:
    """``value`` with the derivative of ``designed``."""
    return designed + (value - designed).detach()


def designed_entry(
    op: Any, sample_inputs: Any, reference: Callable[..., Any], **options: Any
) -> OpInfo:
    """An entry whose derivative is that of ``reference`` and of nothing else."""
    return entry(op, sample_inputs, reference, finite_differences=False, **options)


class RoundStraightThrough(fxforms.Function):
    """Rounds; the derivative is that of the identity (Bengio, Leonard and Courville 2013)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return t.clone()


class SignStraightThrough(fxforms.Function):
    """Binarizes; the derivative is one inside [-1, 1] and zero outside (Hubara et al. 2016)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x < 0, -1, 1).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        inside = inputs[0].abs() <= 1
        ctx.save_for_backward(inside)
        ctx.save_for_forward(inside)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return g * inside

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return t * inside


class Spike(fxforms.Function):
    """A step with a surrogate derivative, ``1 / (1 + s |x|)**2`` (Zenke and Ganguli 2018)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slope: int) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.slope = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def surrogate(ctx: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 1 / (1 + ctx.slope * x.abs()) ** 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Spike.surrogate(ctx) * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, slope: None) -> Any:
        return Spike.surrogate(ctx) * t


class FakeQuantize(fxforms.Function):
    """Rounds to multiples of ``scale`` in a range; gradients pass where nothing is clipped.

    The gradient in ``scale`` is the one of learned step sizes (Esser et al. 2020).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, low: int = -2, high: int = 2) -> Tensor:
        if low >= high:
            raise ValueError(f"FakeQuantize: the range {low} ... {high} is empty.")
        return (x / scale).clamp(low, high).round() * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, scale, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x, scale)
        ctx.save_for_forward(x, scale)

    @staticmethod
    def slopes(ctx: Any) -> Any:
        x, scale = ctx.saved_tensors
        ratio = x / scale
        inside = (ratio >= ctx.low) & (ratio <= ctx.high)
        level = RoundStraightThrough.apply(ratio.clamp(ctx.low, ctx.high))
        return inside, level - inside * ratio

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        inside, in_scale = FakeQuantize.slopes(ctx)
        return g * inside, (g * in_scale).sum(), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, scale_t: Tensor, low: None, high: None) -> Any:
        inside, in_scale = FakeQuantize.slopes(ctx)
        return t * inside + scale_t * in_scale


def _spike(x: Tensor, slope: int) -> Tensor:
    """The surrogate is the derivative of ``x / (1 + s |x|)``."""
    return straight((x > 0).to(x.dtype), x / (1 + slope * x.abs()))


def _quantized(x: Tensor, scale: Tensor, low: int = -2, high: int = 2) -> Tensor:
    """Rounding straight through, and the rest by autograd."""
    ratio = (x / scale).clamp(low, high)
    return straight(ratio.round(), ratio) * scale


def _quantize_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    bad = SampleInput((make(2), make()), {"low": 3})
    yield ErrorInput(bad, ValueError, r"range 3 \.\.\. 2 is empty")


_SIGNED = one_tensor(lambda m: m.signed)

ENTRIES: tuple[OpInfo, ...] = (
    designed_entry(RoundStraightThrough, _SIGNED, lambda x: straight(x.round(), x)),
    designed_entry(
        SignStraightThrough,
        _SIGNED,
        lambda x: straight(torch.where(x < 0, -1, 1).to(x.dtype), x.clamp(-1, 1)),
    ),
    designed_entry(Spike, one_tensor(lambda m: m.signed, 2), _spike),
    designed_entry(
        FakeQuantize,
        samples(
            lambda m: (m.signed(), m(low=0.4, high=0.5)),
            lambda m: (m.signed(3), m(low=0.4, high=0.5), -1),
            lambda m: (m.transposed(2, 3), m(low=0.4, high=0.5), -1, 3),
        ),
        _quantized,
        error_inputs=_quantize_errors,
    ),
)
