"""What ``setup_context`` can keep: outputs, intermediates, attributes, nothing at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import (
    PAIR,
    POSITIVE,
    TWICE,
    entry,
    samples,
)


class ExponentialOfOutput(fxforms.Function):
    """The output is all that is saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * t


class SigmoidOfOutput(ExponentialOfOutput):
    """As its base, with a second derivative that is not the first."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sigmoid()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * (1 - y) * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return SigmoidOfOutput.backward(ctx, t)


class TanhAndIntermediate(fxforms.Function):
    """``tanh(x**2)`` and ``x**2``: the intermediate is an output, so that it has a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        square = x * x
        return square.tanh(), square

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_square: Tensor) -> Any:
        x, y, _ = ctx.saved_tensors
        return 2 * x * ((1 - y * y) * g + g_square)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        x, y, _ = ctx.saved_tensors
        square_t = 2 * x * t
        return (1 - y * y) * square_t, square_t


class SoftplusHidden(fxforms.Function):
    """``log(1 + e**x)``; ``e**x`` is an output that the caller never sees."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        exponential = x.exp()
        return exponential.log1p(), exponential

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_exponential: Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return e / (1 + e) * g + e * g_exponential

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return e / (1 + e) * t, e * t


class IntermediateOnce(fxforms.Function):
    """The intermediate is marked non-differentiable, so the backward is good for once only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        cosine = x.cos()
        return x.sin(), cosine

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor, g_cosine: Tensor) -> Any:
        (cosine,) = ctx.saved_tensors
        return cosine * g


class AttributesOnly(fxforms.Function):
    """Numbers, a string and a list on ``ctx``, and a tensor as an attribute beside them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mode: str) -> Tensor:
        return x * x if mode == "square" else x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.x, ctx.mode = inputs
        ctx.powers = [2, 3]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        power = ctx.powers[ctx.mode == "cube"]
        return power * ctx.x ** (power - 1) * g, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, mode: None) -> Any:
        power = ctx.powers[ctx.mode == "cube"]
        return power * ctx.x ** (power - 1) * t


class OptionalSaved(fxforms.Function):
    """``None`` among the saved tensors: an optional weight."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return x.square() if weight is None else x.square() * weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if weight is None:
            return 2 * x * g, None
        return 2 * x * weight * g, x * x * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor, weight_t: Tensor | None) -> Any:
        x, weight = ctx.saved_tensors
        if weight is None or weight_t is None:
            return 2 * x * t
        return 2 * x * weight * t + x * x * weight_t


class DifferentForEachDirection(fxforms.Function):
    """``save_for_backward`` and ``save_for_forward`` keep different tensors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, y = inputs
        ctx.save_for_backward(y, output)
        ctx.save_for_forward(x, y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        y, output = ctx.saved_tensors
        return y.exp() * g, output * g

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return (x_t + x * y_t) * y.exp()


class SavesNothing(fxforms.Function):
    """A linear function needs nothing."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return 2 * x - 3 * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g, -3 * g

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        return 2 * x_t - 3 * y_t


ENTRIES: tuple[OpInfo, ...] = (
    entry(ExponentialOfOutput, POSITIVE, torch.exp),
    entry(SigmoidOfOutput, POSITIVE, torch.sigmoid),
    entry(TanhAndIntermediate, POSITIVE, lambda x: (torch.tanh(x**2), x**2)),
    entry(SoftplusHidden, POSITIVE, F.softplus, through=lambda x: SoftplusHidden.apply(x)[0]),
    entry(
        IntermediateOnce,
        POSITIVE,
        lambda x: (x.sin(), x.cos().detach()),
        without=TWICE,
    ),
    entry(
        AttributesOnly,
        samples(lambda m: (m(), "square"), lambda m: (m.transposed(2, 3), "cube")),
        lambda x, mode: x ** (3 if mode == "cube" else 2),
    ),
    entry(
        OptionalSaved,
        samples(lambda m: (m(),), lambda m: (m(3), None), lambda m: (m(2, 3), m(2, 3))),
        lambda x, weight=None: x**2 if weight is None else x**2 * weight,
    ),
    entry(DifferentForEachDirection, PAIR, lambda x, y: x * torch.exp(y)),
    entry(SavesNothing, PAIR, lambda x, y: 2 * x - 3 * y),
)
