"""Functions whose backward stands as a node of its own in a captured graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms

# Read by backward at every call: a captured graph must see it change.
WORLD = {"factor": 1.0}


class PlainCube(torch.autograd.Function):
    """``x**3`` as third-party code writes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Cube(fxforms.Function):
    """The same in the functional form."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class CombinedCube(fxforms.Function):
    """The same in the combined form, with a residual."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x**2
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, _ = ctx.saved_tensors
        return 3 * x**2 * g


class NumpyCube(fxforms.Function):
    """The same by NumPy, times ``WORLD["factor"]`` in backward."""

    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(WORLD["factor"] * 3 * x.numpy() ** 2 * g.numpy())


class Split(torch.autograd.Function):
    """``(scale * x + y, sin(x))`` of tensors and a number, with no gradient for ``y``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.scale = scale
        ctx.name = "a name that is also a method of the node"
        return scale * x + y, x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.scale * g + x.cos() * h, None, None


class Lazy(torch.autograd.Function):
    """``(2 * x, 3 * x)``, whose backward takes absent gradients as None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:
        if g is None:
            return None if h is None else 3 * h
        return 2 * g if h is None else 2 * g + 3 * h


class Wide(torch.autograd.Function):
    """``x + y``, whose backward leaves the reduction to the engine and returns an expanded view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g.sum().expand(g.shape) / g.numel()
