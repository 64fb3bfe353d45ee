"""Reductions, over one dim or all, and functions along a dim."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput
from opinfo_db.entries.making import Maker, SavesInputs, entry, samples

ALONG = samples(
    lambda m: (m(3), 0),
    lambda m: (m(2, 3), -1),
    lambda m: (m(0, 2), 1),
    lambda m: SampleInput((m.transposed(2, 3), 0), name="transposed"),
)


class SumOver(fxforms.Function):
    """Sum over one dim; only the shape of the input is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
        return x.sum(dim, keepdim=keepdim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, ctx.keepdim = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        kept = g if ctx.keepdim else g.unsqueeze(ctx.dim)
        return kept.expand(ctx.shape), None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None, keepdim: None) -> Any:
        return t.sum(ctx.dim, keepdim=ctx.keepdim)


class MeanOfSquares(SavesInputs):
    """A scalar from everything."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.square().mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g / x.numel()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (2 * x * t).mean()


class _Along(fxforms.Function):
    """A Function of a tensor and a dim that keeps the input and its output."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)


class LogSumExp(_Along):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        top = x.amax(dim, keepdim=True)
        return (x - top).exp().sum(dim).log() + top.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return (x - y.unsqueeze(ctx.dim)).exp() * g.unsqueeze(ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None) -> Any:
        x, y = ctx.saved_tensors
        return ((x - y.unsqueeze(ctx.dim)).exp() * t).sum(ctx.dim)


class Softmax(_Along):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return x.softmax(dim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        _, y = ctx.saved_tensors
        return y * (g - (g * y).sum(ctx.dim, keepdim=True)), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None) -> Any:
        _, y = ctx.saved_tensors
        return y * (t - (t * y).sum(ctx.dim, keepdim=True))


class EuclideanNorm(_Along):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return x.square().sum(dim).sqrt()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return x * (g / y).unsqueeze(ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None) -> Any:
        x, y = ctx.saved_tensors
        return (x * t).sum(ctx.dim) / y


class CumulativeSum(_Along):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None) -> Any:
        return CumulativeSum.apply(t, ctx.dim)


class MeanAndVariance(fxforms.Function):
    """Two reductions at once; the mean is saved from the outputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return x.mean(dim), x.var(dim, correction=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output[0])
        ctx.save_for_forward(x, output[0])

    @staticmethod
    def backward(ctx: Any, g_mean: Tensor, g_var: Tensor) -> Any:
        x, mean = ctx.saved_tensors
        centred = x - mean.unsqueeze(ctx.dim)
        total = g_mean.unsqueeze(ctx.dim) + 2 * centred * g_var.unsqueeze(ctx.dim)
        return total / x.shape[ctx.dim], None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, dim: None) -> Any:
        x, mean = ctx.saved_tensors
        centred = x - mean.unsqueeze(ctx.dim)
        return t.mean(ctx.dim), (2 * centred * t).mean(ctx.dim)


def _sum_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2), 3)), IndexError, "out of range")
    yield ErrorInput(
        SampleInput((make(2), 0), {"keep": True}), TypeError, "SumOver.apply: .*'keep'"
    )


_FULL = samples(
    lambda m: (m(3), 0),
    lambda m: (m(2, 3), -1),
    lambda m: SampleInput((m.transposed(2, 3), 0), name="transposed"),
)

ENTRIES: tuple[OpInfo, ...] = (
    entry(
        SumOver,
        samples(
            lambda m: (m(3), 0),
            lambda m: (m(2, 3), 1, True),
            lambda m: (m(0, 2), 0),
            lambda m: SampleInput((m.transposed(2, 3),), {"keepdim": True, "dim": -2}),
        ),
        lambda x, dim, keepdim=False: x.sum(dim, keepdim=keepdim),
        error_inputs=_sum_errors,
    ),
    entry(
        MeanOfSquares,
        samples(lambda m: (m(),), lambda m: (m(3),), lambda m: (m.transposed(2, 3),)),
        lambda x: (x * x).mean(),
    ),
    entry(LogSumExp, _FULL, torch.logsumexp),
    entry(Softmax, ALONG, torch.softmax),
    entry(EuclideanNorm, _FULL, lambda x, dim: (x * x).sum(dim).sqrt()),
    entry(CumulativeSum, ALONG, torch.cumsum),
    entry(
        MeanAndVariance,
        _FULL,
        lambda x, dim: (x.mean(dim), x.var(dim, correction=0)),
    ),
)
