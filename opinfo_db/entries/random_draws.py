"""Functions that draw random numbers, by torch's generator alone.

They have no reference: the checks give each call the same seed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import entry, samples


class Dropout(fxforms.Function):
    """Draws a mask in the forward and keeps it as an output without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        kept = torch.rand(x.shape, device=x.device) >= rate
        return x * kept / (1 - rate), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rate = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_kept: Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        return g * kept / (1 - ctx.rate), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, rate: None) -> Any:
        (kept,) = ctx.saved_tensors
        return t * kept / (1 - ctx.rate), None


class NoiseByInfo(fxforms.Function):
    """Adds noise; the rule draws by hand what ``info.randomness`` asks for."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, dtype=x.dtype, device=x.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Any:
        return t.clone()

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor) -> Any:
        if info.randomness == "error":
            raise RuntimeError("NoiseByInfo draws numbers; call vmap with another randomness.")
        if info.randomness == "different":
            return cls.apply(x), in_dims[0]
        front = x.movedim(in_dims[0], 0)
        return front + cls.apply(torch.zeros_like(front[0])), 0


class GaussianSample(fxforms.Function):
    """``mean + deviation * noise``, the reparametrized sample; the noise is an extra output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device)
        return mean + deviation * noise, noise

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_noise: Tensor) -> Any:
        (noise,) = ctx.saved_tensors
        return g, g * noise

    @staticmethod
    def jvp(ctx: Any, mean_t: Tensor, deviation_t: Tensor) -> Any:
        (noise,) = ctx.saved_tensors
        return mean_t + deviation_t * noise, None


ENTRIES: tuple[OpInfo, ...] = (
    entry(
        Dropout,
        samples(lambda m: (m(8), 0.5), lambda m: (m.transposed(3, 4), 0.25)),
        random=True,
    ),
    entry(
        NoiseByInfo,
        samples(lambda m: (m(),), lambda m: (m(3),), lambda m: (m.transposed(2, 3),)),
        random=True,
    ),
    entry(
        GaussianSample,
        samples(lambda m: (m(), m()), lambda m: (m.transposed(2, 3), m(2, 3))),
        random=True,
    ),
)
