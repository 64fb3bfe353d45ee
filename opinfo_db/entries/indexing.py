"""Index arguments: integer and boolean tensors beside those that are differentiated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import Maker, entry, samples


class Gather(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, index: Tensor) -> Tensor:
        return x.gather(dim, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, index = inputs
        ctx.shape = x.shape
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return ScatterAdd.apply(g.new_zeros(ctx.shape), ctx.dim, index, g), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None, index: None) -> Any:
        (index,) = ctx.saved_tensors
        return Gather.apply(t, ctx.dim, index)


class ScatterAdd(fxforms.Function):
    """The transpose of :class:`Gather`; each is in the other's backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        return x.scatter_add(dim, index, source)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.dim, index, _ = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g, None, None, Gather.apply(g, ctx.dim, index)

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None, index: None, source_t: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return ScatterAdd.apply(t, ctx.dim, index, source_t)


class Embedding(fxforms.Function):
    """Rows of a table; a row that is used twice gets both gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(index: Tensor, table: Tensor) -> Tensor:
        return F.embedding(index, table)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        index, table = inputs
        ctx.rows = table.shape[0]
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        flat = g.reshape(-1, g.shape[-1])
        empty = g.new_zeros(ctx.rows, g.shape[-1])
        return None, empty.index_add(0, index.reshape(-1), flat)

    @staticmethod
    def jvp(ctx: Any, index: None, table_t: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return Embedding.apply(index, table_t)


class MaskedFill(fxforms.Function):
    """The value that is filled in is a tensor of one element, with a gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        return torch.where(mask, value, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return g * ~mask, None, (g * mask).sum()

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None, value_t: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, value_t, t)


class SelectRow(fxforms.Function):
    """The index is a Python number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, row: int) -> Tensor:
        return x[row].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.row = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.select_scatter(g.new_zeros(ctx.shape), g, 0, ctx.row), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, row: None) -> Any:
        return t[ctx.row]


def _gather_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    far = torch.tensor([7], device=device)
    yield ErrorInput(SampleInput((make(3), 0, far)), RuntimeError, "out of bounds")
    yield ErrorInput(SampleInput((make(3), 0, make(2))), RuntimeError, "int64")


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        Gather,
        samples(
            lambda m: (m(3), 0, m.integers(3, 2)),
            lambda m: (m.transposed(2, 3), -1, m.integers(3, 2, 4)),
            lambda m: (m(2, 3), 0, m.integers(2, 0, 3)),
        ),
        torch.gather,
        error_inputs=_gather_errors,
    ),
    entry(
        ScatterAdd,
        samples(
            lambda m: (m(3), 0, m.integers(3, 2), m(2)),
            lambda m: (m(2, 3), -1, m.integers(3, 2, 4), m.transposed(2, 4)),
        ),
        torch.scatter_add,
    ),
    entry(
        Embedding,
        samples(
            lambda m: (m.integers(3), m(3, 2)),
            lambda m: (m.integers(3, 4), m(3, 2)),
            lambda m: (m.integers(4, 2, 3), m.transposed(4, 2)),
        ),
        lambda index, table: table[index],
    ),
    entry(
        MaskedFill,
        samples(
            lambda m: (m(), m.mask(), m()),
            lambda m: (m(3), m.mask(3), m()),
            lambda m: (m.transposed(2, 3), m.mask(2, 3), m()),
        ),
        lambda x, mask, value: x * ~mask + value * mask,
    ),
    entry(
        SelectRow,
        samples(lambda m: (m(2), 0), lambda m: (m.transposed(2, 3), -1)),
        lambda x, row: x[row],
    ),
)
