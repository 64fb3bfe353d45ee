"""Opaque bodies: NumPy inside, so torch sees nothing, and each vmap rule is written by hand.

Where a second derivative exists, the rules are made of such Functions themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput, roll_values
from opinfo_db.entries.making import (
    PAIR,
    POSITIVE,
    Maker,
    SavesInputs,
    at_front,
    entry,
    samples,
)


def _numpy(x: Tensor) -> npt.NDArray[Any]:
    """The array of ``x``."""
    array: npt.NDArray[Any] = x.detach().cpu().numpy()
    return array


def _tensor(array: Any, like: Tensor) -> Tensor:
    """A tensor of a new array, where ``like`` is."""
    return torch.tensor(array, device=like.device)


class NumpySine(SavesInputs):
    """With :class:`NumpyCosine`, derivatives of any order."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _tensor(np.sin(_numpy(x)), x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return NumpyProduct.apply(NumpyCosine.apply(*ctx.saved_tensors), g)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return NumpyProduct.apply(NumpyCosine.apply(*ctx.saved_tensors), t)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor) -> Any:
        return cls.apply(x), in_dims[0]


class NumpyCosine(NumpySine):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _tensor(np.cos(_numpy(x)), x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -NumpyProduct.apply(NumpySine.apply(*ctx.saved_tensors), g)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return -NumpyProduct.apply(NumpySine.apply(*ctx.saved_tensors), t)


class NumpyProduct(SavesInputs):
    """Two tensors of one shape."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        if x.shape != y.shape:
            raise ValueError(f"NumpyProduct: shapes {tuple(x.shape)} and {tuple(y.shape)} differ.")
        return _tensor(np.multiply(_numpy(x), _numpy(y)), x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return NumpyProduct.apply(g, y), NumpyProduct.apply(g, x)

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return NumpyProduct.apply(x_t, y) + NumpyProduct.apply(x, y_t)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return cls.apply(*at_front(info, in_dims, x, y)), 0


class NumpyTake(fxforms.Function):
    """``take_along_axis`` on the last dim; ``NumpyPut`` is its transpose."""

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> Tensor:
        return _tensor(np.take_along_axis(_numpy(x), _numpy(index), -1), x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, index = inputs
        ctx.size = x.shape[-1]
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return NumpyPut.apply(g, *ctx.saved_tensors, ctx.size), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Any:
        return NumpyTake.apply(t, *ctx.saved_tensors)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, index: Tensor) -> Any:
        return cls.apply(*at_front(info, in_dims, x, index)), 0


class NumpyPut(fxforms.Function):
    """Adds the values to zeros, at the index along the last dim."""

    @staticmethod
    def forward(values: Tensor, index: Tensor, size: int) -> Tensor:
        rows = _numpy(values).reshape(-1, values.shape[-1])
        columns = _numpy(index).reshape(-1, values.shape[-1])
        result = np.zeros((len(rows), size), rows.dtype)
        np.add.at(result, (np.arange(len(rows))[:, None], columns), rows)
        return _tensor(result.reshape(*values.shape[:-1], size), values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, index, ctx.size = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return NumpyTake.apply(g, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, index: None, size: None) -> Any:
        return NumpyPut.apply(t, *ctx.saved_tensors, ctx.size)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, values: Tensor, index: Tensor, size: int) -> Any:
        return cls.apply(*at_front(info, in_dims[:2], values, index), size), 0


class NumpySort(fxforms.Function):
    """Values and indices; the backward puts the values back."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        array = _numpy(x)
        index = np.argsort(array, -1)
        return _tensor(np.take_along_axis(array, index, -1), x), _tensor(index, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.size = inputs[0].shape[-1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_index: Tensor) -> Any:
        return NumpyPut.apply(g, *ctx.saved_tensors, ctx.size)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return NumpyTake.apply(t, *ctx.saved_tensors), None

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor) -> Any:
        return cls.apply(x.movedim(in_dims[0], 0)), (0, 0)


def _product_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2), make(3))), ValueError, r"shapes \(2,\) and \(3,\)")


ENTRIES: tuple[OpInfo, ...] = (
    entry(NumpySine, POSITIVE, torch.sin),
    entry(NumpyCosine, POSITIVE, torch.cos),
    entry(NumpyProduct, PAIR, torch.mul, error_inputs=_product_errors),
    entry(
        NumpyTake,
        samples(
            lambda m: (m(3), m.integers(3, 2)),
            lambda m: (m.transposed(2, 3), m.integers(3, 2, 4)),
        ),
        lambda x, index: x.gather(-1, index),
    ),
    entry(
        NumpyPut,
        samples(
            lambda m: (m(2), m.integers(3, 2), 3),
            lambda m: (m.transposed(2, 4), m.integers(3, 2, 4), 3),
        ),
        lambda x, index, size: x.new_zeros(*x.shape[:-1], size).scatter_add(-1, index, x),
    ),
    entry(
        NumpySort,
        samples(lambda m: (m.distinct(3),), lambda m: (m.distinct(2, 3),)),
        lambda x: tuple(x.sort(-1)),
        vary=roll_values,
    ),
)
