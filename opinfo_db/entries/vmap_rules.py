"""Hand-written vmap rules: batch dims in odd places, and outputs without a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import (
    PAIR,
    POSITIVE,
    SavesInputs,
    at_front,
    entry,
    samples,
)


class _Product(SavesInputs):
    """``x * y`` with both derivatives; each rule below maps it in its own way."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return x_t * y + x * y_t


class BatchLast(_Product):
    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        last = [t.movedim(0, -1) for t in at_front(info, in_dims, x, y)]
        result = cls.apply(*last)
        return result, result.dim() - 1


class BatchMinusOne(_Product):
    """A negative ``out_dims``."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return cls.apply(*(t.movedim(0, -1) for t in at_front(info, in_dims, x, y))), -1


class BatchInTheMiddle(_Product):
    """At 1 if there is such a dim, else at 0."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        dim = min(1, x.dim() - (in_dims[0] is not None))
        return cls.apply(*(t.movedim(0, dim) for t in at_front(info, in_dims, x, y))), dim


class BatchWhereItWas(_Product):
    """Nothing is moved if the dims agree."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        if in_dims[0] == in_dims[1]:
            return cls.apply(x, y), in_dims[0]
        return cls.apply(*at_front(info, in_dims, x, y)), 0


class LoopOverBatch(_Product):
    """One call a sample, stacked in the last dim; ``info.batch_size`` says how many."""

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        def sample(tensor: Tensor, dim: int | None, index: int) -> Tensor:
            return tensor if dim is None else tensor.select(dim, index)

        rows = [
            cls.apply(sample(x, in_dims[0], i), sample(y, in_dims[1], i))
            for i in range(info.batch_size)
        ]
        return torch.stack(rows, -1), -1


class SumAndProduct(SavesInputs):
    """Two outputs with the batch at different places."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x * y

    @staticmethod
    def backward(ctx: Any, g_sum: Tensor, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g_sum + g * y, g_sum + g * x

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return x_t + y_t, x_t * y + x * y_t

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        total, product = cls.apply(*at_front(info, in_dims, x, y))
        return (total.movedim(0, -1), product), (-1, 0)


class OwnDimEach(fxforms.Function):
    """``(x**2, y**3)``: an output is batched only if its own input is."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * x, y * y * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g_x: Tensor, g_y: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 2 * x * g_x, 3 * y * y * g_y

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        return OwnDimEach.backward(ctx, x_t, y_t)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return cls.apply(x, y), in_dims


class ConstantBeside(SavesInputs):
    """An output that never has a batch: a constant of the Function."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x, x.new_ones(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_constant: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * t, None

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor) -> Any:
        return cls.apply(x), (in_dims[0], None)


ENTRIES: tuple[OpInfo, ...] = (
    *(
        entry(op, PAIR, lambda x, y: torch.mul(y, x))
        for op in (BatchLast, BatchMinusOne, BatchInTheMiddle, BatchWhereItWas, LoopOverBatch)
    ),
    entry(SumAndProduct, PAIR, lambda x, y: (x + y, y * x)),
    entry(
        OwnDimEach,
        samples(
            lambda m: (m(), m()), lambda m: (m(3), m(2, 2)), lambda m: (m.transposed(2, 3), m(0))
        ),
        lambda x, y: (x**2, y**3),
    ),
    entry(
        ConstantBeside,
        POSITIVE,
        lambda x: (x**2, torch.ones(2, dtype=x.dtype)),
    ),
)
