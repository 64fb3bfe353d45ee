"""Elementwise functions: one tensor or several of one shape, each with every rule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import (
    PAIR,
    POSITIVE,
    Maker,
    SavesInputs,
    entry,
    one_tensor,
    samples,
    scalar_tangent,
)


class Sine(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return x.cos() * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return x.cos() * t


class Cube(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t


class LogGamma(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.lgamma(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.digamma(x) * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.digamma(x) * t


class ExactGelu(SavesInputs):
    """``x Phi(x)``; the derivative is ``Phi(x) + x phi(x)``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def slope(x: Tensor) -> Any:
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ExactGelu.slope(*ctx.saved_tensors) * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return ExactGelu.slope(*ctx.saved_tensors) * t


class Clamp(fxforms.Function):
    """Clamp between two numbers, which are no tensors; the mask is kept, not the input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, low, high = inputs
        inside = (x >= low) & (x <= high)
        ctx.save_for_backward(inside)
        ctx.save_for_forward(inside)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return g * inside, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, low: None, high: None) -> Any:
        (inside,) = ctx.saved_tensors
        return t * inside


class ArcTangent2(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, x: Tensor) -> Tensor:
        return torch.atan2(y, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        y, x = ctx.saved_tensors
        scaled = g / (x * x + y * y)
        return x * scaled, -y * scaled

    @staticmethod
    def jvp(ctx: Any, y_t: Tensor, x_t: Tensor) -> Any:
        y, x = ctx.saved_tensors
        return (x * y_t - y * x_t) / (x * x + y * y)


class Select(SavesInputs):
    """``where``: the condition is a boolean tensor, without a gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(condition, a, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        condition = ctx.saved_tensors[0]
        return None, g * condition, g * ~condition

    @staticmethod
    def jvp(ctx: Any, _: None, a_t: Tensor, b_t: Tensor) -> Any:
        condition = ctx.saved_tensors[0]
        return torch.where(condition, a_t, b_t)


class Power(fxforms.Function):
    """``x**n`` for an integer ``n``, which is kept on ``ctx``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, n: int) -> Tensor:
        if n < 1:
            raise ValueError(f"Power: the exponent is {n}; give one that is at least 1.")
        return x**n

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.n = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def slope(ctx: Any) -> Any:
        (x,) = ctx.saved_tensors
        lower = torch.ones_like(x) if ctx.n == 1 else Power.apply(x, ctx.n - 1)
        return ctx.n * lower

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Power.slope(ctx) * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, n: None) -> Any:
        return Power.slope(ctx) * t


def _power_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2), 0)), ValueError, "exponent is 0")
    yield ErrorInput(SampleInput((make(2),)), TypeError, "Power.apply: missing.*'n'")
    yield ErrorInput(SampleInput((make(2), 2, 3)), TypeError, "Power.apply: too many")


ENTRIES: tuple[OpInfo, ...] = (
    entry(Sine, POSITIVE, torch.sin),
    entry(Cube, POSITIVE, lambda x: x**3),
    entry(LogGamma, POSITIVE, torch.lgamma),
    entry(
        ExactGelu,
        one_tensor(lambda m: m.signed),
        F.gelu,
        expected_failures=scalar_tangent("jvpvjp", "jvpjvp", "vmapjvpvjp", "mixed_jvpvjp"),
    ),
    entry(Clamp, one_tensor(lambda m: m.signed, -1.6, 0.1), torch.clamp),
    entry(ArcTangent2, PAIR, torch.atan2),
    entry(
        Select,
        samples(
            lambda m: (m.mask(), m(), m()),
            lambda m: (m.mask(3), m(3), m(3)),
            lambda m: (m.mask(2, 3), m.transposed(2, 3), m(2, 3)),
        ),
        torch.where,
    ),
    entry(
        Power,
        samples(
            lambda m: (m(), 1),
            lambda m: (m(3), 2),
            lambda m: (m(0), 3),
            lambda m: (m.transposed(2, 3), 4),
        ),
        torch.pow,
        error_inputs=_power_errors,
    ),
)
