"""Outputs without a derivative: indices, signs, counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput, roll_values
from opinfo_db.entries.making import Maker, entry, samples

DISTINCT = samples(
    lambda m: (m.distinct(3), 0),
    lambda m: (m.distinct(2, 3), -1),
    lambda m: (m.distinct(0, 2), 1),
    lambda m: SampleInput((m.distinct(2, 3).mT, 0), name="transposed"),
)


class _ValuesAndIndices(fxforms.Function):
    """The first output is picked from the input by the second, along ``dim``."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, *rest = inputs
        _, indices = output
        ctx.rest, ctx.shape = len(rest), x.shape
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        ctx.save_for_forward(indices)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_indices: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        empty = g.new_zeros(ctx.shape)
        return empty.scatter(ctx.dim, indices, g), None, *(None for _ in range(ctx.rest))

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None, *rest: None) -> Any:
        (indices,) = ctx.saved_tensors
        return t.gather(ctx.dim, indices), None


class Sort(_ValuesAndIndices):
    @staticmethod
    def forward(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        values, indices = x.sort(dim)
        return values, indices


class TopK(_ValuesAndIndices):
    @staticmethod
    def forward(x: Tensor, dim: int, k: int) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(k, dim)
        return values, indices


class MaximumWithIndex(_ValuesAndIndices):
    @staticmethod
    def forward(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        values, indices = x.max(dim, keepdim=True)
        return values, indices


class ArgMax(fxforms.Function):
    """Nothing to differentiate at all."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return x.argmax(dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)


class SignAndSize(fxforms.Function):
    """A floating output that is marked non-differentiable, before one that is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sign(), x.abs()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        sign, _ = output
        ctx.mark_non_differentiable(sign)
        ctx.save_for_backward(sign)
        ctx.save_for_forward(sign)

    @staticmethod
    def backward(ctx: Any, g_sign: Tensor, g: Tensor) -> Any:
        (sign,) = ctx.saved_tensors
        return sign * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (sign,) = ctx.saved_tensors
        return None, sign * t


class CountAbove(fxforms.Function):
    """Integers from integers: the samples have no floating tensor that is differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, limit: Tensor) -> Tensor:
        return (x > limit).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)


def _top_k_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(3), 0, 4)), RuntimeError, "out of range")


ENTRIES: tuple[OpInfo, ...] = (
    entry(Sort, DISTINCT, lambda x, dim: tuple(x.sort(dim)), vary=roll_values),
    entry(
        TopK,
        samples(
            lambda m: (m.distinct(3), 0, 1),
            lambda m: (m.distinct(2, 4), -1, 2),
            lambda m: (m.distinct(2, 3).mT, 0, 0),
        ),
        lambda x, dim, k: tuple(x.topk(k, dim)),
        vary=roll_values,
        error_inputs=_top_k_errors,
    ),
    entry(
        MaximumWithIndex,
        samples(
            lambda m: (m.distinct(3), 0),
            lambda m: (m.distinct(2, 3), -1),
            lambda m: SampleInput((m.distinct(2, 3).mT, 0), name="transposed"),
        ),
        lambda x, dim: tuple(x.max(dim, keepdim=True)),
        vary=roll_values,
    ),
    entry(
        ArgMax,
        samples(
            lambda m: (m.distinct(3), 0),
            lambda m: (m.distinct(2, 3), -1),
            lambda m: SampleInput((m.distinct(2, 3).mT, 0), name="transposed"),
        ),
        torch.argmax,
        vary=roll_values,
    ),
    entry(
        SignAndSize,
        samples(lambda m: (m.signed(),), lambda m: (m.signed(2, 3),), lambda m: (m.signed(0),)),
        lambda x: (x.sign().detach(), x.abs()),
    ),
    entry(
        CountAbove,
        samples(
            lambda m: (m.integers(5, 3), m.integers(5)),
            lambda m: (m.integers(5, 2, 4), m.integers(5, 2, 1)),
        ),
        lambda x, limit: torch.gt(x, limit).long().sum(-1),
        dtypes=(torch.int64,),
    ),
)
