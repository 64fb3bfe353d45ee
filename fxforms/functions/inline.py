"""Fast paths for a call below which nothing is differentiated.

The operator takes a call down level by level so that each level can apply the Function's rules. If
no level below differentiates, its body may run at once, as a plain operation does; the value is the
same and two or three levels are not entered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.interpreters import below_all_levels
from fxforms.interpreters.levels import JVP, VMAP


def tracked(tensors: tuple[Any, ...]) -> bool:
    """True if plain autograd, in either mode, follows one of ``tensors``."""
    return substrate.dual_level_open() or recorded(tensors)


def tracked_outside(tensors: tuple[Any, ...]) -> bool:
    """The same where no jvp level is on the stack: one that is lowered has opened the dual level.

    What it follows is not among ``tensors``.
    """
    if substrate.dual_level_open() and not substrate.is_only_jvp_level():
        return True
    return recorded(tensors)


def recorded(tensors: Sequence[Any]) -> bool:
    """True if plain reverse-mode autograd follows one of ``tensors``."""
    if torch.is_grad_enabled():
        for x in tensors:
            if isinstance(x, torch.Tensor) and substrate.unbatched(x).requires_grad:
                return True
    return False


def only_vmaps(operands: tuple[Any, ...]) -> bool:
    """True if every level is a vmap, and plain autograd follows none of ``operands``."""
    for handle in substrate.level_handles() or ():
        if int(handle.key()) != VMAP:
            return False
    return not tracked_outside(operands)


def differentiated(operands: Sequence[Any]) -> bool:
    """True if a level differentiates, or plain autograd, in either mode, follows an operand."""
    levels = substrate.level_transforms() if substrate.transforms_active() else ()
    if any(level != VMAP for level in levels) or recorded(operands):
        return True
    return (
        substrate.dual_level_open()
        and substrate.forward_grad_enabled()
        and any(isinstance(x, torch.Tensor) and has_tangent(x) for x in operands)
    )


def any_dual(tensors: Sequence[torch.Tensor]) -> bool:
    """True if one of ``tensors`` has a tangent at the forward-mode level on top, if any."""
    if not substrate.dual_level_open():
        return False
    return any(substrate.tangent_of(x) is not None for x in tensors)


def has_tangent(tensor: torch.Tensor) -> bool:
    """True if ``tensor`` is a dual tensor under its vmap levels, if any."""
    with below_all_levels():
        return substrate.tangent_of(substrate.unbatched(tensor)) is not None


def last_to_differentiate(operands: tuple[Any, ...], transform: int) -> bool:
    """True if nothing below the top level, a grad or a jvp, differentiates: there are only vmaps.

    ``transform`` is that of the top level.
    """
    depth, unwrap = substrate.level_depth(), substrate.unwrap_for_grad
    if torch.is_grad_enabled():
        for x in operands:
            if isinstance(x, torch.Tensor) and substrate.unbatched(unwrap(x, depth)).requires_grad:
                return False
    if depth > 1 and any(level != VMAP for level in substrate.level_transforms()[:-1]):
        return False
    return not substrate.dual_level_open() or (transform == JVP and substrate.is_only_jvp_level())


def last_jvp(operands: tuple[Any, ...]) -> bool:
    """The same of a jvp level that is lowered while its rule runs."""
    below = substrate.level_transforms()
    return (
        substrate.is_only_jvp_level()
        and all(level == VMAP for level in below)
        and not recorded(operands)
    )


def batched_on_top(operands: tuple[Any, ...]) -> bool:
    """True if the top level, a vmap, batches one of ``operands``."""
    level, level_of = substrate.current_level(), substrate.level_of
    return any(isinstance(x, torch.Tensor) and level_of(x) == level for x in operands)


def below_derivatives(operands: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The tensors among ``operands`` that a grad or jvp level captures from a lower one."""
    kinds = substrate.level_transforms()
    last = max((level for level, kind in enumerate(kinds, 1) if kind != VMAP), default=0)
    level_of = substrate.level_of
    return tuple([x for x in operands if isinstance(x, torch.Tensor) and level_of(x) < last])


def run_untracked(body: Any, operands: tuple[Any, ...]) -> Any:
    """``body`` without recording, as autograd runs a forward."""
    before = torch.is_grad_enabled()
    substrate.set_grad_enabled(False)
    try:
        return body(*operands)
    finally:
        substrate.set_grad_enabled(before)
