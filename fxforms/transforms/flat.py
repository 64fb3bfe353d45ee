"""Transforms of flat functions: of tensors to a tuple of tensors, some of which are differentiated.

Outputs of any dtype may be among them; those with a derivative are called inexact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms.transforms._arguments import is_differentiable as is_inexact
from fxforms.transforms.jvp import jvp
from fxforms.transforms.vjp import vjp

__all__ = ["FlatFunction", "Tensors", "fill", "gradients", "is_inexact", "pushforward"]

Tensors = tuple[torch.Tensor, ...]
FlatFunction = Callable[..., Tensors]


def fill(mask: Sequence[bool], chosen: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """``others`` with ``chosen`` in the places of ``mask``."""
    given = iter(chosen)
    return [next(given) if is_chosen else x for is_chosen, x in zip(mask, others)]


def pushforward(function: FlatFunction, mask: Sequence[bool]) -> FlatFunction:
    """Outputs and tangents of the inexact ones, of primals and tangents of those in ``mask``."""

    def push(*operands: torch.Tensor) -> Tensors:
        primals, tangents = operands[: len(mask)], operands[len(mask) :]
        chosen = tuple([x for x, is_chosen in zip(primals, mask) if is_chosen])
        outputs, moved = jvp(lambda *xs: function(*fill(mask, xs, primals)), chosen, tangents)
        return (*outputs, *[t for x, t in zip(outputs, moved) if is_inexact(x)])

    return push


def gradients(
    function: FlatFunction, mask: Sequence[bool]
) -> Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]:
    """``(outputs, gradients of what mask names)``, of inputs and cotangents of inexact outputs."""

    def both(primals: Tensors, cotangents: Tensors) -> tuple[Tensors, Tensors]:
        def inexact(*xs: torch.Tensor) -> tuple[Tensors, Tensors]:
            outputs = function(*fill(mask, xs, primals))
            return tuple([x for x in outputs if is_inexact(x)]), outputs

        chosen = [x for x, is_chosen in zip(primals, mask) if is_chosen]
        _, pull, outputs = vjp(inexact, *chosen, has_aux=True)
        return outputs, pull(cotangents)

    return both
