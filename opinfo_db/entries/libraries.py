"""Fused layers and losses as real libraries write them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import fxforms
from opinfo_db.core import ErrorInput, OpInfo, SampleInput, Tolerance
from opinfo_db.entries.making import Maker, SavesInputs, entry, samples

LOOSE = {torch.float32: Tolerance(3e-5, 3e-4)}


class SoftmaxCrossEntropy(fxforms.Function):
    """The mean over rows; the softmax is an extra output, as in a fused kernel."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        logs = logits.log_softmax(-1)
        picked = logs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        rows = (1 - smoothing) * picked + smoothing * logs.mean(-1)
        return -rows.mean(), logs.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, target, ctx.smoothing = inputs
        ctx.save_for_backward(target, output[1])
        ctx.save_for_forward(target, output[1])

    @staticmethod
    def slope(ctx: Any) -> Any:
        target, softmax = ctx.saved_tensors
        classes = softmax.shape[-1]
        hot = target.unsqueeze(-1) == torch.arange(classes, device=target.device)
        wanted = (1 - ctx.smoothing) * hot.to(softmax.dtype) + ctx.smoothing / classes
        return softmax, (softmax - wanted) / max(1, softmax[..., 0].numel())

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_softmax: Tensor) -> Any:
        softmax, slope = SoftmaxCrossEntropy.slope(ctx)
        centred = g_softmax - (g_softmax * softmax).sum(-1, keepdim=True)
        return g * slope + softmax * centred, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, target: None, smoothing: None) -> Any:
        softmax, slope = SoftmaxCrossEntropy.slope(ctx)
        return (slope * t).sum(), softmax * (t - (t * softmax).sum(-1, keepdim=True))


class LayerNorm(fxforms.Function):
    """Over the last dim. Mean and inverse deviation are extra outputs, kept for the backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(-1, keepdim=True)
        rstd = (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()
        return (x - mean) * rstd * weight + bias, mean, rstd

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, _, _ = inputs
        ctx.save_for_backward(x, weight, *output[1:])
        ctx.save_for_forward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_mean: Tensor, g_rstd: Tensor) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        normal, size = (x - mean) * rstd, x.shape[-1]
        scaled = g * weight
        along = scaled.mean(-1, keepdim=True) + normal * (scaled * normal).mean(-1, keepdim=True)
        g_x = rstd * (scaled - along) + (g_mean - g_rstd * rstd**2 * normal) / size
        leading = list(range(g.dim() - 1))
        return g_x, _sum(g * normal, leading), _sum(g, leading), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, weight_t: Tensor, bias_t: Tensor, eps: None) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        normal = (x - mean) * rstd
        mean_t = t.mean(-1, keepdim=True)
        rstd_t = -(rstd**2) * (normal * t).mean(-1, keepdim=True)
        normal_t = (t - mean_t) * rstd + (x - mean) * rstd_t
        return normal_t * weight + normal * weight_t + bias_t, mean_t, rstd_t


def _sum(x: Tensor, dims: list[int]) -> Tensor:
    """The sum over ``dims``; over none of them, ``x``."""
    return x.sum(dims) if dims else x


class Linear(fxforms.Function):
    """``x W' + b`` with an optional bias; the backward computes what is asked for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = x @ weight.mT
        return product if bias is None else product + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        g_x = g @ weight if wanted[0] else None
        g_weight = g.mT @ x if wanted[1] else None
        return g_x, g_weight, (g.sum(0) if ctx.biased and wanted[2] else None)

    @staticmethod
    def jvp(ctx: Any, t: Tensor, weight_t: Tensor, bias_t: Tensor | None) -> Any:
        x, weight = ctx.saved_tensors
        total = t @ weight.mT + x @ weight_t.mT
        return total if bias_t is None else total + bias_t


class RmsNorm(SavesInputs):
    """Recomputes everything in the backward, to keep the inputs only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).rsqrt() * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rms = x.square().mean(-1, keepdim=True).rsqrt()
        scaled, normal = g * weight, x * rms
        g_x = rms * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
        return g_x, (g * normal).sum_to_size(weight.shape)

    @staticmethod
    def jvp(ctx: Any, t: Tensor, weight_t: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rms = x.square().mean(-1, keepdim=True).rsqrt()
        normal = x * rms
        normal_t = rms * (t - normal * (normal * t).mean(-1, keepdim=True))
        return normal_t * weight + normal * weight_t


class GatedSilu(SavesInputs):
    """``silu(a) * b``, the activation of gated feed-forward layers, in one node."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a * a.sigmoid() * b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        gate = a.sigmoid()
        return g * b * gate * (1 + a * (1 - gate)), g * a * gate

    @staticmethod
    def jvp(ctx: Any, a_t: Tensor, b_t: Tensor) -> Any:
        a, b = ctx.saved_tensors
        gate = a.sigmoid()
        return gate * (1 + a * (1 - gate)) * b * a_t + a * gate * b_t


class Attention(fxforms.Function):
    """Scaled dot-product attention that keeps the output and one number a row, not the matrix."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        total = scores.logsumexp(-1, keepdim=True)
        return (scores - total).exp() @ v, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def probabilities(ctx: Any) -> Any:
        q, k, _, _, total = ctx.saved_tensors
        scale = 1 / math.sqrt(q.shape[-1])
        return scale, (q @ k.mT * scale - total).exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_total: Tensor) -> Any:
        q, k, v, out, _ = ctx.saved_tensors
        scale, p = Attention.probabilities(ctx)
        delta = (g * out).sum(-1, keepdim=True)
        g_scores = p * (g @ v.mT - delta + g_total) * scale
        return g_scores @ k, g_scores.mT @ q, p.mT @ g

    @staticmethod
    def jvp(ctx: Any, q_t: Tensor, k_t: Tensor, v_t: Tensor) -> Any:
        q, k, v, out, _ = ctx.saved_tensors
        scale, p = Attention.probabilities(ctx)
        scores_t = (q_t @ k.mT + q @ k_t.mT) * scale
        total_t = (p * scores_t).sum(-1, keepdim=True)
        return (p * scores_t) @ v - total_t * out + p @ v_t, total_t


def _linear_errors(device: torch.device, dtype: torch.dtype) -> Any:
    make = Maker(device, dtype, False)
    yield ErrorInput(SampleInput((make(2, 3), make(4, 2))), RuntimeError, "cannot be multiplied")


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Out of pieces: torch's own has a wrong third derivative."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def _attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Row by row with a softmax."""
    scores = (q.unsqueeze(1) * k).sum(-1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v, torch.log(scores.exp().sum(-1, keepdim=True))


_ROWS = samples(
    lambda m: (m(2), m(2)), lambda m: (m(3, 2), m(2)), lambda m: (m.transposed(3, 4), m(4))
)

ENTRIES: tuple[OpInfo, ...] = (
    entry(
        SoftmaxCrossEntropy,
        samples(
            lambda m: (m(1, 2), m.integers(2, 1)),
            lambda m: (m.transposed(3, 4), m.integers(4, 3)),
            lambda m: SampleInput((m(2, 3), m.integers(3, 2)), {"smoothing": 0.1}, "smoothing"),
        ),
        lambda logits, target, smoothing=0.0: F.cross_entropy(
            logits, target, label_smoothing=smoothing
        ),
        through=lambda *args, **kwargs: SoftmaxCrossEntropy.apply(*args, **kwargs)[0],
    ),
    entry(
        LayerNorm,
        samples(
            lambda m: (m.distinct(3), m(3), m(3)),
            lambda m: (m.distinct(2, 4), m(4), m(4)),
            lambda m: (m.transposed(3, 4), m(4), m(4), 0.1),
        ),
        _layer_norm,
        through=lambda *args: LayerNorm.apply(*args)[0],
        tolerances=LOOSE,
    ),
    entry(
        Linear,
        samples(
            lambda m: (m(1, 2), m(1, 2)),
            lambda m: (m(3, 2), m.transposed(4, 2), m(4)),
            lambda m: (m(0, 2), m(3, 2), m(3)),
            lambda m: SampleInput((m(3, 2), m(2, 2, grad=False), m(2)), name="frozen"),
        ),
        F.linear,
        error_inputs=_linear_errors,
    ),
    entry(RmsNorm, _ROWS, lambda x, weight: F.rms_norm(x, weight.shape, weight, 0.0)),
    entry(
        GatedSilu,
        samples(lambda m: (m(2), m(2)), lambda m: (m.transposed(3, 2), m(3, 2))),
        lambda a, b: F.silu(a) * b,
    ),
    entry(
        Attention,
        samples(
            lambda m: (m(1, 1), m(1, 1), m(1, 1)),
            lambda m: (m(2, 3), m.transposed(4, 3), m(4, 2)),
        ),
        _attention,
        tolerances=LOOSE,
    ),
)
