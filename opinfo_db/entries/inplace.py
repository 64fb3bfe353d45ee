"""Functions that change their arguments in place and say so with ``mark_dirty``.

Each is called on copies, so that the samples stay as they are. Where one of two tensors is changed,
the copy depends on both, for a tensor without a batch cannot take in one that has a batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import PAIR, POSITIVE, Maker, entry, one_tensor


class ScaleInPlace(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: int) -> Tensor:
        return x.mul_(factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.factor = inputs
        ctx.mark_dirty(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, factor: None) -> Any:
        return t.mul_(ctx.factor)


class ExpInPlace(fxforms.Function):
    """The output, which is the changed input, is saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * y

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return t.mul_(y)


class AccumulateInto(fxforms.Function):
    """``x += factor * y``: one of two tensors is changed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, factor: int = 3) -> Tensor:
        return x.add_(y, alpha=factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, _, ctx.factor = inputs
        ctx.mark_dirty(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, g * ctx.factor, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor, factor: None) -> Any:
        return x_t.add_(y_t, alpha=ctx.factor)


class DirtyAndFresh(fxforms.Function):
    """The changed input and a new tensor, in an order that tells them apart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        square = x * x
        return square, x.mul_(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_dirty(*inputs)
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, g_square: Tensor, g: Tensor) -> Any:
        (double,) = ctx.saved_tensors
        return double * g_square + 2 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (double,) = ctx.saved_tensors
        return double * t.clone(), t.mul_(2)


class BothDirty(fxforms.Function):
    """``x *= 2; y *= 3``: both are changed and both are returned, swapped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y.mul_(3), x.mul_(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx: Any, g_y: Tensor, g_x: Tensor) -> Any:
        return 2 * g_x, 3 * g_y

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        return y_t.mul_(3), x_t.mul_(2)


def _accumulate_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2), make(3))), RuntimeError, "must match")


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        ScaleInPlace,
        one_tensor(lambda m: m, 3),
        lambda x, factor: x * factor,
        through=lambda x, factor: ScaleInPlace.apply(x.clone(), factor),
    ),
    entry(
        ExpInPlace,
        POSITIVE,
        torch.exp,
        through=lambda x: ExpInPlace.apply(x.clone()),
    ),
    entry(
        AccumulateInto,
        PAIR,
        lambda x, y: x + 3 * y,
        through=lambda x, y: AccumulateInto.apply(x + 0 * y, y),
        error_inputs=_accumulate_errors,
    ),
    entry(
        DirtyAndFresh,
        POSITIVE,
        lambda x: (x**2, 2 * x),
        through=lambda x: DirtyAndFresh.apply(x.clone()),
    ),
    entry(
        BothDirty,
        PAIR,
        lambda x, y: (3 * y, 2 * x),
        through=lambda x, y: BothDirty.apply(x + 0 * y, y + 0 * x),
    ),
)
