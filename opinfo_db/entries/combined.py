"""The combined form ``forward(ctx, *args)``: what ``forward`` may leave on ``ctx``.

Residuals, intermediates that are no outputs, are in ``residuals.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import (
    PAIR,
    POSITIVE,
    REVERSE_TWICE,
    TWICE,
    at_front,
    entry,
    one_tensor,
    samples,
)


class CombinedInputs(fxforms.Function):
    """Saved inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y.sin(), g * x * y.cos()


class CombinedOutput(fxforms.Function):
    """A saved output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class CombinedInPlace(fxforms.Function):
    """The input is changed, and the output, which it is, is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * y


class CombinedSort(fxforms.Function):
    """Indices that are marked non-differentiable, and saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
        values, index = x.sort(dim)
        ctx.dim = dim
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        return values, index

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_index: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(ctx.dim, index, g), None


class CombinedNeeds(fxforms.Function):
    """``needs_input_grad`` read in ``forward``: only what is asked for is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad
        ctx.save_for_backward(y if wanted[0] else None, x if wanted[1] else None)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        y, x = ctx.saved_tensors
        return (None if y is None else g * y), (None if x is None else g * x)


class CombinedAbsent(fxforms.Function):
    """``set_materialize_grads(False)``: an absent cotangent is ``None``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * x, y * y * y

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        return (None if a is None else 2 * x * a), (None if b is None else 3 * y * y * b)


class CombinedOptional(fxforms.Function):
    """An output that is a tensor or ``None``, and one that is a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, squared: bool) -> tuple[Tensor, Tensor | None, int]:
        ctx.save_for_backward(x)
        return x.exp(), x * x if squared else None, x.dim()

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_square: Tensor | None, g_dim: None) -> Any:
        (x,) = ctx.saved_tensors
        total = g * x.exp()
        return (total if g_square is None else total + 2 * x * g_square), None


class CombinedJvp(fxforms.Function):
    """Forward mode alone, from what was saved for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        root = (x * y).sqrt()
        ctx.save_for_forward(x, y, root)
        return root

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y, root = ctx.saved_tensors
        return (x_t * y + x * y_t) / (2 * root)


class CombinedEveryRule(fxforms.Function):
    """All rules written, each for its own saved tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        product = x * y
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(y, x)
        return product

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        y, x = ctx.saved_tensors
        return x_t * y + x * y_t

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return cls.apply(*at_front(info, in_dims, x, y)), 0


class CombinedOnce(fxforms.Function):
    """One derivative only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class CombinedOnceAndJvp(CombinedOnce):
    """One reverse derivative, and any number forward."""

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * t


class CombinedNoRule(fxforms.Function):
    """No derivative at all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.floor()


class CombinedReturnsInput(fxforms.Function):
    """An input is returned beside a view of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g_x: Tensor, g_y: Tensor) -> Any:
        return 2 * g_x - g_x, g_y


ENTRIES: tuple[OpInfo, ...] = (
    entry(CombinedInputs, PAIR, lambda x, y: torch.sin(y).mul(x)),
    entry(CombinedOutput, POSITIVE, torch.tanh),
    entry(
        CombinedInPlace,
        POSITIVE,
        torch.exp,
        through=lambda x: CombinedInPlace.apply(x.clone()),
    ),
    entry(
        CombinedSort,
        samples(lambda m: (m.distinct(3),), lambda m: (m.distinct(2, 3), 0)),
        lambda x, dim=-1: tuple(torch.sort(x, dim)),
    ),
    entry(CombinedNeeds, PAIR, torch.mul),
    entry(CombinedAbsent, PAIR, lambda x, y: (x**2, y**3)),
    entry(
        CombinedOptional,
        samples(
            lambda m: (m(), True), lambda m: (m(3), False), lambda m: (m.transposed(2, 3), True)
        ),
        lambda x, squared: (torch.exp(x), x**2 if squared else None, x.dim()),
    ),
    entry(CombinedJvp, PAIR, lambda x, y: x.sqrt() * y.sqrt()),
    entry(CombinedEveryRule, PAIR, torch.mul),
    entry(CombinedOnce, POSITIVE, torch.square, without=TWICE),
    entry(CombinedOnceAndJvp, POSITIVE, torch.square, without=REVERSE_TWICE),
    entry(CombinedNoRule, one_tensor(lambda m: m), torch.floor),
    entry(CombinedReturnsInput, PAIR, lambda x, y: (x * 1, y * 1)),
)
