"""Outputs that share memory with inputs: views, the input itself, two views of one input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo, SampleInput
from opinfo_db.entries.making import POSITIVE, entry, samples


class _View(fxforms.Function):
    """A view keeps shapes and numbers only; the tensor arguments come first."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, *ctx.rest = inputs
        ctx.shape = x.shape


class Transpose(_View):
    @staticmethod
    def forward(x: Tensor, a: int, b: int) -> Tensor:
        return x.transpose(a, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Transpose.apply(g, *ctx.rest), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, a: None, b: None) -> Any:
        return Transpose.apply(t, *ctx.rest)


class Reshape(_View):
    """The shape is a tuple of numbers."""

    @staticmethod
    def forward(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.reshape(ctx.shape), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, shape: None) -> Any:
        return t.reshape(*ctx.rest)


class Narrow(_View):
    @staticmethod
    def forward(x: Tensor, dim: int, start: int, length: int) -> Tensor:
        return x.narrow(dim, start, length)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        dim, start, length = ctx.rest
        empty = g.new_zeros(ctx.shape)
        spread = torch.slice_scatter(empty, g, dim, start, start + length)
        return spread, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *rest: None) -> Any:
        return t.narrow(*ctx.rest)


class Diagonal(_View):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.diagonal(dim1=-2, dim2=-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.diagonal_scatter(g.new_zeros(ctx.shape), g, 0, -2, -1)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return t.diagonal(dim1=-2, dim2=-1)


class ExpandRows(_View):
    """A view in which memory is shared by several elements."""

    @staticmethod
    def forward(x: Tensor, rows: int) -> Tensor:
        return x.expand(rows, *x.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.sum(0), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, rows: None) -> Any:
        return t.expand(*ctx.rest, *ctx.shape)


class SameTensor(_View):
    """The output is the input, the same object."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return t


class InputAndDouble(_View):
    """The input itself beside a new tensor."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x + x

    @staticmethod
    def backward(ctx: Any, g_same: Tensor, g_double: Tensor) -> Any:
        return g_same + 2 * g_double

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return t, 2 * t


class TwoHalves(_View):
    """Two views of one input."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2)
        return first, second

    @staticmethod
    def backward(ctx: Any, g_first: Tensor, g_second: Tensor) -> Any:
        return torch.cat((g_first, g_second))

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return tuple(t.chunk(2))


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        Transpose,
        samples(
            lambda m: (m(2, 3), 0, 1),
            lambda m: (m.transposed(2, 3), -1, 0),
            lambda m: (m(2, 1, 3), 0, -1),
        ),
        lambda x, a, b: x.movedim((a, b), (b, a)),
    ),
    entry(
        Reshape,
        samples(
            lambda m: (m(), (1,)),
            lambda m: (m(2, 3), (6,)),
            lambda m: (m(0, 2), (2, 0)),
            lambda m: SampleInput((m.transposed(2, 3), (3, -1)), name="copies"),
        ),
        torch.reshape,
    ),
    entry(
        Narrow,
        samples(
            lambda m: (m(3), 0, 1, 2),
            lambda m: (m(2, 3), -1, 0, 2),
            lambda m: (m.transposed(2, 3), 0, 1, 0),
        ),
        lambda x, dim, start, length: x.index_select(dim, torch.arange(start, start + length)),
    ),
    entry(
        Diagonal,
        samples(lambda m: (m(2, 2),), lambda m: (m(2, 2, 3),), lambda m: (m.transposed(3, 2),)),
        lambda x: torch.stack([x[..., i, i] for i in range(min(x.shape[-2:]))], -1),
    ),
    entry(
        ExpandRows,
        samples(lambda m: (m(), 2), lambda m: (m(3), 2), lambda m: (m.transposed(2, 3), 1)),
        lambda x, rows: torch.stack([x] * rows),
    ),
    entry(SameTensor, POSITIVE, torch.clone),
    entry(InputAndDouble, POSITIVE, lambda x: (x.clone(), 2 * x)),
    entry(
        TwoHalves,
        samples(lambda m: (m(2),), lambda m: (m(3, 2),), lambda m: (m.transposed(4, 2),)),
        lambda x: (x[: (len(x) + 1) // 2].clone(), x[(len(x) + 1) // 2 :].clone()),
    ),
)
