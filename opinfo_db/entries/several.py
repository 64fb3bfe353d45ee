"""Several inputs and outputs: tuples of one, broadcasting, any number of tensors, a count.

Dicts and dataclasses in and out of ``apply`` are not here: the core takes flat operands so far.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import PAIR, POSITIVE, Maker, SavesInputs, entry, samples


class SineCosine(fxforms.Function):
    """Both outputs are saved: each is the derivative of the other."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, g_sin: Tensor, g_cos: Tensor) -> Any:
        sin, cos = ctx.saved_tensors
        return cos * g_sin - sin * g_cos

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        sin, cos = ctx.saved_tensors
        return cos * t, -sin * t


class TupleOfOne(SavesInputs):
    """A tuple with one tensor is not the same as a tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor]:
        return (x * x,)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (2 * x * g,)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (2 * x * t,)


class PolarToCartesian(SavesInputs):
    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        return r * phi.cos(), r * phi.sin()

    @staticmethod
    def backward(ctx: Any, g_x: Tensor, g_y: Tensor) -> Any:
        r, phi = ctx.saved_tensors
        sin, cos = phi.sin(), phi.cos()
        return g_x * cos + g_y * sin, r * (g_y * cos - g_x * sin)

    @staticmethod
    def jvp(ctx: Any, r_t: Tensor, phi_t: Tensor) -> Any:
        r, phi = ctx.saved_tensors
        sin, cos = phi.sin(), phi.cos()
        return r_t * cos - r * sin * phi_t, r_t * sin + r * cos * phi_t


class MultiplyAdd(SavesInputs):
    """``a * b + c`` with broadcasting; the gradients are summed to the shape of each input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a * b + c

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b, c = ctx.saved_tensors
        grads = (g * b).sum_to_size(a.shape), (g * a).sum_to_size(b.shape)
        return *grads, g.sum_to_size(c.shape)

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor, c_t: Tensor) -> Any:
        a, b, _ = ctx.saved_tensors
        return a_t * b + a * b_t + c_t


class Concatenate(fxforms.Function):
    """Any number of tensors after a dim."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dim: int, *tensors: Tensor) -> Tensor:
        return torch.cat(tensors, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.dim, *tensors = inputs
        ctx.sizes = [t.shape[ctx.dim] for t in tensors]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, *Split.apply(g, ctx.dim, *ctx.sizes)

    @staticmethod
    def jvp(ctx: Any, dim: None, *tangents: Tensor) -> Any:
        return torch.cat(tangents, ctx.dim)


class Split(fxforms.Function):
    """As many outputs as numbers are given."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, *sizes: int) -> tuple[Tensor, ...]:
        return tuple(part.clone() for part in torch.split(x, list(sizes), dim))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.dim, *ctx.sizes = inputs

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return Concatenate.apply(ctx.dim, *cotangents), None, *(None for _ in ctx.sizes)

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *rest: None) -> Any:
        return tuple(torch.split(t, ctx.sizes, ctx.dim))


class DoubleAndCount(SavesInputs):
    """An output that is no tensor: the number of elements."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, int]:
        return 2 * x, x.numel()

    @staticmethod
    def backward(ctx: Any, g: Tensor, count: None) -> Any:
        return 2 * g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return 2 * t, None


class OuterAndInner(SavesInputs):
    """Outputs of different ranks from two vectors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.unsqueeze(1) * b, (a * b).sum()

    @staticmethod
    def backward(ctx: Any, g_outer: Tensor, g_inner: Tensor) -> Any:
        a, b = ctx.saved_tensors
        g_a = (g_outer * b).sum(1) + g_inner * b
        return g_a, (g_outer * a.unsqueeze(1)).sum(0) + g_inner * a

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor) -> Any:
        a, b = ctx.saved_tensors
        outer = a_t.unsqueeze(1) * b + a.unsqueeze(1) * b_t
        return outer, (a_t * b + a * b_t).sum()


def _concatenate_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((0, make(2, 3), make(2, 4))), RuntimeError, "[Ss]izes")
    yield ErrorInput(SampleInput(()), TypeError, "Concatenate.apply: missing.*'dim'")


def _multiply_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2), make(3), make(3))), RuntimeError, "must match")


ENTRIES: tuple[OpInfo, ...] = (
    entry(SineCosine, POSITIVE, lambda x: (x.sin(), x.cos())),
    entry(TupleOfOne, POSITIVE, lambda x: (x**2,)),
    entry(PolarToCartesian, PAIR, lambda r, phi: (r * phi.cos(), r * phi.sin())),
    entry(
        MultiplyAdd,
        samples(
            lambda m: (m(), m(), m()),
            lambda m: (m(3), m(), m(1)),
            lambda m: (m.transposed(2, 3), m(2, 1), m(3)),
        ),
        lambda a, b, c: torch.addcmul(c, a, b),
        error_inputs=_multiply_errors,
    ),
    entry(
        Concatenate,
        samples(
            lambda m: (0, m(2)),
            lambda m: (0, m(3), m(0), m(1)),
            lambda m: (-1, m(2, 1), m.transposed(2, 3)),
        ),
        lambda dim, *tensors: torch.cat(tensors, dim),
        error_inputs=_concatenate_errors,
    ),
    entry(
        Split,
        samples(lambda m: (m(3), 0, 1, 2), lambda m: (m.transposed(2, 4), 1, 2, 0, 2)),
        lambda x, dim, *sizes: x.split(sizes, dim),
    ),
    entry(DoubleAndCount, POSITIVE, lambda x: (x + x, x.numel())),
    entry(
        OuterAndInner,
        samples(lambda m: (m(1), m(1)), lambda m: (m(3), m(3)), lambda m: (m(0), m(0))),
        lambda a, b: (torch.outer(a, b), torch.dot(a, b)),
    ),
)
