"""Opaque bodies without a vmap rule: a batch is a loop, with ``vmap_method = "loop"`` to accept it.

Where ``backward`` is of torch operations, or of such Functions, all derivatives are there.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fxforms
from opinfo_db.core import Capability, OpInfo
from opinfo_db.entries.making import (
    PAIR,
    POSITIVE,
    TWICE,
    SavesInputs,
    entry,
    samples,
)


def _numpy(x: Tensor) -> Any:
    """The array of ``x``."""
    return x.detach().cpu().numpy()


class LoopTanh(fxforms.Function):
    """The output is saved, and the backward is of torch operations."""

    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tensor(np.tanh(_numpy(x)), device=x.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class LoopHypot(SavesInputs):
    """Two inputs, and forward mode alone; the reverse is derived."""

    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(np.hypot(_numpy(x), _numpy(y)), device=x.device)

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return (x * x_t + y * y_t) / (x * x + y * y).sqrt()


class LoopSine(SavesInputs):
    """A backward of such Functions; the other one is :class:`LoopCosine`."""

    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tensor(np.sin(_numpy(x)), device=x.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return LoopCosine.apply(*ctx.saved_tensors) * g


class LoopCosine(LoopSine):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tensor(np.cos(_numpy(x)), device=x.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -LoopSine.apply(*ctx.saved_tensors) * g


class LoopCombined(fxforms.Function):
    """The combined form, an index as a number taken by ``item``, and a flag beside the output."""

    vmap_method = "loop"

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        larger = bool(x.sum().item() > y.sum().item())
        ctx.save_for_backward(x, y)
        flag = torch.tensor(larger)
        ctx.mark_non_differentiable(flag)
        return x * y * y, flag

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_flag: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y * y, 2 * g * x * y


class LoopDict(fxforms.Function):
    """Containers in and out."""

    vmap_method = "loop"

    @staticmethod
    def forward(pair: dict[str, Tensor]) -> dict[str, Tensor]:
        x, y = _numpy(pair["x"]), _numpy(pair["y"])
        return {"product": torch.tensor(x * y), "quotient": torch.tensor(x / y)}

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0]["x"], inputs[0]["y"])

    @staticmethod
    def backward(ctx: Any, g: dict[str, Tensor]) -> Any:
        x, y = ctx.saved_tensors
        in_x = g["product"] * y + g["quotient"] / y
        return {"x": in_x, "y": g["product"] * x - g["quotient"] * x / (y * y)}


class LoopOpaqueBackward(SavesInputs):
    """NumPy in the backward as well: one derivative, and that in reverse mode only."""

    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tensor(np.square(_numpy(x)), device=x.device)

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.tensor(2 * _numpy(x) * _numpy(g), device=x.device)


class WarnsAndLoops(LoopTanh):
    """The default method: the loop comes with one warning."""

    vmap_method = "derive"


class LoopHistogram(fxforms.Function):
    """No derivative: a histogram in fixed bins."""

    vmap_method = "loop"

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        counts, _ = np.histogram(_numpy(x), bins=[0.5, 1.0, 1.5, 2.0])
        return torch.tensor(counts, device=x.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)


def _quiet(op: Any) -> Any:
    """Calls to ``op`` without the warning of its first batch."""

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fxforms.UnmappableWarning)
            return op.apply(*args)

    return call


def _histogram(x: Tensor) -> Tensor:
    """Counts by comparison."""
    edges = ((0.5, 1.0), (1.0, 1.5), (1.5, 2.0))
    return torch.stack([((x >= a) & (x < b)).sum() for a, b in edges])


ENTRIES: tuple[OpInfo, ...] = (
    entry(LoopTanh, POSITIVE, torch.tanh),
    entry(LoopHypot, PAIR, lambda x, y: (x**2 + y**2) ** 0.5),
    entry(LoopSine, POSITIVE, torch.sin),
    entry(LoopCosine, POSITIVE, torch.cos),
    entry(
        LoopCombined,
        PAIR,
        lambda x, y: (x * y.square(), x.sum() > y.sum()),
    ),
    entry(
        LoopDict,
        samples(
            lambda m: ({"x": m(), "y": m()},), lambda m: ({"x": m(2, 3), "y": m.transposed(2, 3)},)
        ),
        lambda pair: {"product": pair["x"].mul(pair["y"]), "quotient": pair["x"].div(pair["y"])},
    ),
    entry(
        LoopOpaqueBackward,
        POSITIVE,
        torch.square,
        without=TWICE | {Capability.JVP},
    ),
    entry(WarnsAndLoops, POSITIVE, torch.tanh, through=_quiet(WarnsAndLoops)),
    entry(LoopHistogram, POSITIVE, _histogram),
)
