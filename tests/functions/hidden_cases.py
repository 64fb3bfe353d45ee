"""Functions that keep a residual where no level sees it; each equals the sine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from combined_cases import setter, sine
from torch import Tensor
from unary import Op

import fxforms


def _in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        cosine = x.cos()
    return cosine.clone()


class _Box:
    """An object that no pytree opens."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


_ONES = torch.ones(3, dtype=torch.float64)


def _array_of(x: Tensor) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = x.cos()
    return array


HIDDEN_BY: dict[str, tuple[Any, Any]] = {
    "an object": (lambda x: _Box(x.cos()), lambda ctx: ctx.kept.tensor),
    "a closure": (lambda x: (lambda c: lambda: c)(x.cos()), lambda ctx: ctx.kept()),
    "a set": (lambda x: {x.cos()}, lambda ctx: next(iter(ctx.kept))),
    "inference mode": (_in_inference_mode, lambda ctx: ctx.kept),
    "a NumPy array of objects": (_array_of, lambda ctx: ctx.kept[0]),
    "a pullback": (lambda x: fxforms.vjp(torch.sin, x)[1], lambda ctx: ctx.kept(_ONES)[0]),
    "pullbacks": (lambda x: [fxforms.vjp(torch.sin, x)[1]], lambda ctx: ctx.kept[0](_ONES)[0]),
    "a torch.func pullback": (
        lambda x: torch.func.vjp(torch.sin, x)[1],
        lambda ctx: ctx.kept(_ONES)[0],
    ),
    "a linear map": (lambda x: fxforms.linearize(torch.sin, x)[1], lambda ctx: ctx.kept(_ONES)),
}
HIDDEN: dict[str, Op] = {
    name: sine(setter(keep), find, "Hidden") for name, (keep, find) in HIDDEN_BY.items()
}
