"""The transforms that the checks are run on: those of fxforms, or torch's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import fxforms


@dataclass(frozen=True, slots=True)
class Transforms:
    """The transforms under test, with the signatures of ``torch.func``.

    ``jit`` is that of fxforms, which torch has not; it takes the function alone.
    """

    name: str
    grad: Callable[..., Any]
    vjp: Callable[..., Any]
    jvp: Callable[..., Any]
    vmap: Callable[..., Any]
    jit: Callable[..., Any]


def _jit(function: Callable[..., Any]) -> Any:
    """``function`` traced, and its graph run operator by operator."""
    return fxforms.jit(function, backend="eager")


FXFORMS = Transforms("fxforms", fxforms.grad, fxforms.vjp, fxforms.jvp, fxforms.vmap, _jit)
TORCH_FUNC = Transforms(
    "torch.func", torch.func.grad, torch.func.vjp, torch.func.jvp, torch.func.vmap, _jit
)
