"""The backward pass of a level that has ended."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fxforms import _substrate as substrate
from fxforms.errors import SAVED_HOOKS, TURNED_OFF, UnsupportedError
from fxforms.interpreters import below_all_levels
from fxforms.interpreters.levels import JVP


def backward(
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    retain_graph: bool,
    create_graph: bool,
) -> list[torch.Tensor]:
    """The vjp of ``outputs`` at ``cotangents``: one gradient for each input, zeros if unused.

    Raises:
        UnsupportedError: the function turned off ``requires_grad`` of an input.
    """
    for x in inputs:
        if not x.requires_grad:
            raise RuntimeError(TURNED_OFF)  # translated by the caller, which knows the function
    pairs = [(out, ct) for out, ct in zip(outputs, cotangents) if out.requires_grad]
    if not pairs:
        return [zeros_like(x) for x in inputs]
    gradients = substrate.run_backward(
        [out for out, _ in pairs], [ct for _, ct in pairs], inputs, retain_graph, create_graph
    )
    unwrap = substrate.unwrap_if_dead
    found = [zeros_like(x) if g is None else unwrap(g) for g, x in zip(gradients, inputs)]
    for gradient in found:
        if substrate.unbatched(gradient).requires_grad:
            return settled(found, pairs)
    return found


def check_saved_hooks(values: Sequence[torch.Tensor]) -> None:
    """Raise UnsupportedError if hooks hide from autograd outside a derivative of ``values``.

    They run without recording, so the term that goes through what a level has saved is lost.
    """
    if substrate.saved_hooks() is None:
        return
    with below_all_levels():
        for value in map(substrate.physical, values):
            tangent = substrate.tangent_of(value) if substrate.dual_level_open() else None
            if value.requires_grad or tangent is not None:
                raise UnsupportedError(SAVED_HOOKS)


def settled(
    gradients: list[torch.Tensor], pairs: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[torch.Tensor]:
    """``gradients``, off a graph that has ended: a hook or a rule may have left them on it.

    Not at a jvp level: there ``detach`` takes the tangent off too, and the graph ends with it.
    """
    unwrap = substrate.unwrap_if_dead
    if substrate.transforms_active() and JVP in substrate.level_transforms():
        return gradients
    if any(substrate.unbatched(unwrap(x)).requires_grad for pair in pairs for x in pair):
        return gradients
    return [g.detach() for g in gradients]


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of the shape of ``tensor``, whose level has ended."""
    return torch.zeros_like(substrate.unwrap_if_dead(tensor), requires_grad=False)
