"""Custom Functions for the tests, each beside the plain operation that it equals.

Every pair takes two float tensors ``(x, y)`` of one shape and returns the tuple
``(2 * x**2 * y, x * sin(y))``; they differ in how the custom half is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms


class Cube(fxforms.Function):
    """``x**3``, with every rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t


class Product(fxforms.Function):
    """``x * y``; gradients left to be reduced by whoever broadcast."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return tx * y + x * ty


class Mix(fxforms.Function):
    """Several outputs, a non-tensor argument and output, a non-differentiable output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, k: float, y: Tensor) -> Any:
        return k * x**2 * y, "label", x > 0, x * y.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, k, y = inputs
        ctx.save_for_backward(x, None, y)
        ctx.save_for_forward(x, None, y)
        ctx.k = k
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any, __: Any, h: Tensor) -> Any:
        x, _, y = ctx.saved_tensors
        return 2 * ctx.k * x * y * g + y.sin() * h, None, ctx.k * x**2 * g + x * y.cos() * h

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, _: Any, ty: Tensor) -> Any:
        x, _, y = ctx.saved_tensors
        first = 2 * ctx.k * x * y * tx + ctx.k * x**2 * ty
        return first, None, None, y.sin() * tx + x * y.cos() * ty


class MixByHand(fxforms.Function):
    """A vmap rule of its own, whose second output keeps the batch last."""

    forward = Mix.forward
    setup_context = Mix.setup_context
    backward = Mix.backward
    jvp = Mix.jvp

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, k: float, y: Tensor) -> Any:
        dx, _, dy = in_dims
        assert info.batch_size == (x.shape[dx] if dx is not None else y.shape[dy])
        x = x.unsqueeze(-1) if dx is None else x.movedim(dx, -1)
        y = y.unsqueeze(-1) if dy is None else y.movedim(dy, -1)
        first, label, positive, last = MixByHand.apply(x, k, y)
        if dx is None:
            return (first, label, positive.squeeze(-1), last), (-1, None, None, -1)
        return (first, label, positive, last), -1


class Unmaterialized(fxforms.Function):
    """Asks for absent cotangents and tangents as None."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x**2 * y, x * y.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        to_x = [] if g is None else [4 * x * y * g]
        to_y = [] if g is None else [2 * x**2 * g]
        if h is not None:
            to_x.append(y.sin() * h)
            to_y.append(x * y.cos() * h)
        needed = zip((to_x, to_y), ctx.needs_input_grad)
        return tuple(sum(to) if to and need else None for to, need in needed)

    @staticmethod
    def jvp(ctx: Any, tx: Tensor | None, ty: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        parts = []
        if tx is not None:
            parts.append((4 * x * y * tx, y.sin() * tx))
        if ty is not None:
            parts.append((2 * x**2 * ty, x * y.cos() * ty))
        return tuple(map(sum, zip(*parts)))


class Attributes(fxforms.Function):
    """Keeps its tensors as attributes of ctx, one bare and one inside a container."""

    generate_vmap_rule = True
    forward = Unmaterialized.forward

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.x = inputs[0]
        ctx.rest = {"y": [inputs[1], "text"]}
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, y = ctx.x, ctx.rest["y"][0]
        assert x.shape == ctx.shape
        return 4 * x * y * g + y.sin() * h, 2 * x**2 * g + x * y.cos() * h

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> Any:
        x, y = ctx.x, ctx.rest["y"][0]
        return 4 * x * y * tx + 2 * x**2 * ty, y.sin() * tx + x * y.cos() * ty


class Nested(fxforms.Function):
    """Calls other Functions in its forward, backward and jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Any:
        return 2 * Product.apply(x**2, y), Product.apply(x, y.sin())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, y = ctx.saved_tensors
        to_x = 4 * Product.apply(Product.apply(x, y), g) + Product.apply(y.sin(), h)
        return to_x, 2 * Product.apply(x**2, g) + Product.apply(Product.apply(x, y.cos()), h)

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> Any:
        x, y = ctx.saved_tensors
        first = 4 * Product.apply(Product.apply(x, y), tx) + 2 * Product.apply(x**2, ty)
        return first, Product.apply(y.sin(), tx) + Product.apply(Product.apply(x, y.cos()), ty)


class Triple(fxforms.Function):
    """Multiplies its input by three, in place."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.mul_(3)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t.mul_(3)


class TripleByHand(fxforms.Function):
    forward = Triple.forward
    setup_context = Triple.setup_context
    backward = Triple.backward
    jvp = Triple.jvp

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return TripleByHand.apply(x), in_dims[0]


class Keep(fxforms.Function):
    """Returns its inputs: one as it is, one as a view; the gradient passes doubled."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * g, 2 * h

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * tx, 2 * ty


def plain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What every custom pair computes, in torch operations."""
    return 2 * x**2 * y, x * y.sin()


def doubled(x: Tensor) -> Tensor:
    """``x`` with twice its derivative, to the first order."""
    return 2 * x - x.detach()


def _mix(function: Any) -> Any:
    def op(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, label, positive, last = function.apply(x, 2.0, y)
        assert label == "label"
        assert positive.dtype == torch.bool
        return first, last

    return op


def _in_place(function: Any) -> Any:
    def op(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        u = x**2 * y * 2 / 3
        v = u * 1
        function.apply(v)
        return v, x * y.sin()

    return op


#: name of the writing: the operation by a custom Function.
PAIRS: dict[str, Any] = {
    "torch operations": plain,
    "generated vmap": _mix(Mix),
    "hand-written vmap": _mix(MixByHand),
    "materialize_grads off": Unmaterialized.apply,
    "ctx attributes": Attributes.apply,
    "Functions in rules": Nested.apply,
    "mark_dirty": _in_place(Triple),
    "mark_dirty, hand-written vmap": _in_place(TripleByHand),
}
