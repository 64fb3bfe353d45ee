"""Fast paths for a call below which nothing is differentiated.

The operator takes a call down level by level so that each level can apply the Function's rules. If
no level below differentiates, its body may run at once, as a plain operation does; the value is the
same and two or three levels are not entered again.
"""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.interpreters.levels import GRAD


def tracked(tensors: tuple[Any, ...]) -> bool:
    """True if plain autograd, in either mode, follows one of ``tensors``."""
    if substrate.dual_level_open():
        return True
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and substrate.unbatched(x).requires_grad for x in tensors
    )


def only_vmaps(operands: tuple[Any, ...]) -> bool:
    """True if every level is a vmap, and plain autograd follows none of ``operands``."""
    levels = substrate.level_transforms()
    return all(level == substrate.VMAP for level in levels) and not tracked(operands)


def one_grad(operands: tuple[Any, ...]) -> bool:
    """True if the only level is a grad, and plain autograd follows none of ``operands``."""
    if substrate.level_depth() != 1 or substrate.level_transforms() != [GRAD]:
        return False
    inner = [
        substrate.unwrap_for_grad(x, 1) if isinstance(x, torch.Tensor) else x for x in operands
    ]
    return not tracked(tuple(inner))


def run_untracked(body: Any, operands: tuple[Any, ...]) -> Any:
    """``body`` without recording, as autograd runs a forward."""
    before = torch.is_grad_enabled()
    substrate.set_grad_enabled(False)
    try:
        return body(*operands)
    finally:
        substrate.set_grad_enabled(before)
