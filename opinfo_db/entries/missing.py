"""Rules partly missing: one function, ``x**2 * y``, with each combination of rules.

What is not written is derived, so each does all that any of them does, but for :class:`NoRule` and
those with a vmap rule alone, which have no derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.core import OpInfo
from opinfo_db.entries.making import (
    PAIR,
    REVERSE_TWICE,
    TWICE,
    at_front,
    entry,
)


class _Body:
    """What all of them share."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _Backward:
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 2 * x * y * g, x * x * g


class _Once:
    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 2 * x * y * g, x * x * g


class _Jvp:
    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, y_t: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 2 * x * y * x_t + x * x * y_t


class _Vmap:
    @classmethod
    def vmap(cls, info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return cls.apply(*at_front(info, in_dims, x, y)), 0  # type: ignore[attr-defined]


class _Generated:
    generate_vmap_rule = True


class NoRule(_Body, fxforms.Function):
    """The value and a batch of values."""


class BackwardOnly(_Body, _Backward, fxforms.Function):
    pass


class JvpOnly(_Body, _Jvp, fxforms.Function):
    pass


class VmapOnly(_Body, _Vmap, fxforms.Function):
    pass


class GeneratedVmapOnly(_Generated, _Body, fxforms.Function):
    pass


class BackwardAndJvp(_Body, _Backward, _Jvp, fxforms.Function):
    pass


class BackwardAndVmap(_Body, _Backward, _Vmap, fxforms.Function):
    pass


class BackwardAndGeneratedVmap(_Generated, _Body, _Backward, fxforms.Function):
    pass


class JvpAndVmap(_Body, _Jvp, _Vmap, fxforms.Function):
    pass


class JvpAndGeneratedVmap(_Generated, _Body, _Jvp, fxforms.Function):
    pass


class EveryRule(_Body, _Backward, _Jvp, _Vmap, fxforms.Function):
    pass


class OnceOnly(_Body, _Once, fxforms.Function):
    pass


class OnceAndVmap(_Body, _Once, _Vmap, fxforms.Function):
    pass


class OnceAndGeneratedVmap(_Generated, _Body, _Once, fxforms.Function):
    pass


class OnceAndJvp(_Body, _Once, _Jvp, _Vmap, fxforms.Function):
    pass


def _reference(x: Tensor, y: Tensor) -> Tensor:
    """The same out of other operations."""
    return torch.square(x).mul(y)


_PLAIN = (
    NoRule,
    BackwardOnly,
    JvpOnly,
    VmapOnly,
    GeneratedVmapOnly,
    BackwardAndJvp,
    BackwardAndVmap,
    BackwardAndGeneratedVmap,
    JvpAndVmap,
    JvpAndGeneratedVmap,
    EveryRule,
)

ENTRIES: tuple[OpInfo, ...] = (
    *(entry(op, PAIR, _reference) for op in _PLAIN),
    entry(OnceOnly, PAIR, _reference, without=TWICE),
    entry(OnceAndVmap, PAIR, _reference, without=TWICE),
    entry(OnceAndGeneratedVmap, PAIR, _reference, without=TWICE),
    entry(OnceAndJvp, PAIR, _reference, without=REVERSE_TWICE),
)
