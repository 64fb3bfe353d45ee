"""Containers in and out of ``apply``: dicts, lists and tuples.

The rules get and return the structures of the arguments and of the output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import POSITIVE, Maker, at_front, entry, samples


class Affine(fxforms.Function):
    """A dict of parameters in, a tensor out; the gradient is a dict."""

    @staticmethod
    def forward(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return params["weight"] * x + params["bias"]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        params, x = inputs
        ctx.save_for_backward(params["weight"], x)
        ctx.save_for_forward(params["weight"], x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        weight, x = ctx.saved_tensors
        return {"weight": g * x, "bias": g}, g * weight

    @staticmethod
    def jvp(ctx: Any, params_t: dict[str, Tensor], x_t: Tensor) -> Any:
        weight, x = ctx.saved_tensors
        return params_t["weight"] * x + weight * x_t + params_t["bias"]


class AffineOtherOrder(Affine):
    """The gradient has the keys of the argument in another order."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        weight, x = ctx.saved_tensors
        return {"bias": g, "weight": g * x}, g * weight


class SquareAndCube(fxforms.Function):
    """A tensor in, a dict out: the cotangent is a dict."""

    @staticmethod
    def forward(x: Tensor) -> dict[str, Tensor]:
        return {"square": x * x, "cube": x * x * x}

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g["square"] + 3 * x * x * g["cube"]


class SumOfSquares(fxforms.Function):
    """A list of tensors of any shapes in; the gradient is a list."""

    @staticmethod
    def forward(tensors: list[Tensor]) -> Tensor:
        return torch.stack([x.square().sum() for x in tensors]).sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return [2 * x * g for x in ctx.saved_tensors]


class ScaleList(fxforms.Function):
    """A list in and a list out, by forward mode alone; the reverse is derived."""

    @staticmethod
    def forward(tensors: list[Tensor], factor: Tensor) -> list[Tensor]:
        return [factor * x for x in tensors]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, factor = inputs
        ctx.save_for_forward(*tensors, factor)

    @staticmethod
    def jvp(ctx: Any, tangents: list[Tensor], factor_t: Tensor) -> Any:
        *tensors, factor = ctx.saved_tensors
        return [factor * t + factor_t * x for x, t in zip(tensors, tangents, strict=True)]


class ComplexProductOfPairs(fxforms.Function):
    """Two tuples in and a tuple out, which is one cotangent a member."""

    @staticmethod
    def forward(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b = inputs
        ctx.save_for_backward(*a, *b)

    @staticmethod
    def backward(ctx: Any, g_re: Tensor, g_im: Tensor) -> Any:
        a_re, a_im, b_re, b_im = ctx.saved_tensors
        in_a = (g_re * b_re + g_im * b_im, g_im * b_re - g_re * b_im)
        return in_a, (g_re * a_re + g_im * a_im, g_im * a_re - g_re * a_im)


class ProductOfDict(fxforms.Function):
    """A vmap rule that gets ``in_dims`` and returns ``out_dims`` in the structures."""

    @staticmethod
    def forward(pair: dict[str, Tensor]) -> dict[str, Any]:
        return {"product": pair["x"] * pair["y"], "parts": (pair["x"] + pair["y"], 2 * pair["x"])}

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0]["x"], inputs[0]["y"])

    @staticmethod
    def backward(ctx: Any, g: dict[str, Any]) -> Any:
        x, y = ctx.saved_tensors
        total, double = g["parts"]
        return {"x": g["product"] * y + total + 2 * double, "y": g["product"] * x + total}

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, pair: dict[str, Tensor]) -> Any:
        dims = (in_dims[0]["x"], in_dims[0]["y"])
        x, y = (t.movedim(0, -1) for t in at_front(info, dims, pair["x"], pair["y"]))
        return cls.apply({"x": x, "y": y}), {"product": -1, "parts": -1}


def _complex_product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Any:
    """By torch's complex numbers."""
    product = torch.complex(*a) * torch.complex(*b)
    return product.real, product.imag


def _pair(m: Maker, *shape: int) -> tuple[dict[str, Tensor]]:
    """A dict of two tensors."""
    return ({"x": m(*shape), "y": m(*shape)},)


def _affine(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """The reference of :class:`Affine`."""
    return torch.addcmul(params["bias"], params["weight"], x)


def _affine_errors(device: torch.device, dtype: torch.dtype) -> Any:
    x = Maker(device, dtype, False)(2)
    yield ErrorInput(SampleInput(({"weight": x}, x)), KeyError, "bias")
    yield ErrorInput(SampleInput(({"weight": x, "bias": x},)), TypeError, "missing.*'x'")


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        Affine,
        samples(
            lambda m: ({"weight": m(), "bias": m()}, m()),
            lambda m: ({"weight": m(3), "bias": m(3)}, m(3)),
            lambda m: SampleInput(
                (), {"x": m(2, 3), "params": {"weight": m.transposed(2, 3), "bias": m(2, 3)}}, "kw"
            ),
        ),
        _affine,
        error_inputs=_affine_errors,
    ),
    entry(AffineOtherOrder, samples(lambda m: ({"weight": m(), "bias": m()}, m())), _affine),
    entry(SquareAndCube, POSITIVE, lambda x: {"square": x**2, "cube": x**3}),
    entry(
        SumOfSquares,
        samples(lambda m: ([m()],), lambda m: ([m(2), m(0), m(2, 1)],)),
        lambda tensors: torch.cat([x.flatten() for x in tensors]).pow(2).sum(),
    ),
    entry(
        ScaleList,
        samples(lambda m: ([m(), m(2)], m()), lambda m: ([m.transposed(2, 3)], m())),
        lambda tensors, factor: [x.mul(factor) for x in tensors],
    ),
    entry(
        ComplexProductOfPairs,
        samples(
            lambda m: ((m(), m()), (m(), m())), lambda m: ((m(2), m(2)), (m.transposed(2, 2), m(2)))
        ),
        _complex_product,
    ),
    entry(
        ProductOfDict,
        samples(lambda m: _pair(m), lambda m: _pair(m, 3), lambda m: _pair(m, 0, 2)),
        lambda pair: {
            "product": torch.mul(pair["y"], pair["x"]),
            "parts": (pair["y"] + pair["x"], pair["x"] * 2),
        },
    ),
)
