"""Entering a level of each transform, and leaving it whatever happens.

NOTE [grad mode crosses levels]

- Outside: ``with torch.no_grad(): grad(f)(x)`` differentiates all the same, for a transform's
  result does not depend on a mode outside the function. The result is a constant to whatever
  encloses the ``no_grad``.
- Inside: ``no_grad`` within ``f`` holds for this level and all levels below it.

So a grad level turns recording on and remembers the mode outside; whoever lowers past it turns
recording off again if that mode was off, and never on.

NOTE [a transform inside a checkpoint]

``torch.utils.checkpoint(..., use_reentrant=False)`` keeps none of the tensors that its hooks see
and runs the block again to have them. It takes them for those of plain autograd: at those of a
level it would run the block, and the transform in it, amid that transform's backward. So a grad
level takes these hooks off the stack, and the block keeps what is saved within the level. The block
does the same when it runs again, so torch counts as many tensors as before.
"""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import SAVED_HOOKS, UnsupportedError

GRAD = int(substrate.TransformType.Grad)
JVP = int(substrate.TransformType.Jvp)
VMAP = substrate.VMAP


class grad_level:
    """A reverse-mode level, with recording and ``requires_grad_`` on; entering gives its number."""

    __slots__ = ("_checkpoints", "_hooks", "_is_differentiated", "_saved")

    def __enter__(self) -> int:
        self._saved = torch.is_grad_enabled(), substrate.requires_grad_allowed()
        self._checkpoints = take_checkpoint_hooks()
        self._is_differentiated = differentiated()
        if self._is_differentiated:
            self._refuse_saved_hooks()
        level = substrate.enter_grad()
        substrate.set_grad_enabled(True)
        substrate.set_requires_grad_allowed(True)
        return level

    def __exit__(self, *error: object) -> None:
        substrate.exit_grad()
        if self._is_differentiated and self._hooks is None:
            substrate.enable_saved_hooks()
        put_back(self._checkpoints)
        substrate.set_grad_enabled(self._saved[0])
        substrate.set_requires_grad_allowed(self._saved[1])

    def _refuse_saved_hooks(self) -> None:
        """Make saved-tensor hooks an error here: torch runs them without recording.

        What they return would be a constant to the grad or jvp level below.
        """
        if substrate.saved_hooks() is not None:
            put_back(self._checkpoints)
            raise UnsupportedError(SAVED_HOOKS)
        self._hooks = substrate.saved_hooks_message()
        if self._hooks is None:
            substrate.disable_saved_hooks(SAVED_HOOKS)


def take_checkpoint_hooks() -> list[Any]:
    """All hooks, innermost first, off the stack if ``torch.utils.checkpoint``'s are in force.

    Those below them are not in force; see NOTE [a transform inside a checkpoint].
    """
    taken: list[Any] = []
    hooks = substrate.saved_hooks()
    if hooks is None or not is_checkpoint(hooks[0]):
        return taken
    while (hooks := substrate.saved_hooks()) is not None:
        taken.append(hooks)
        substrate.pop_saved_hooks()
    return taken


def is_checkpoint(pack: Any) -> bool:
    """True if ``pack`` is a hook of torch's checkpoint, in its first run or in its second."""
    return getattr(pack, "__module__", None) == "torch.utils.checkpoint"


def put_back(taken: list[Any]) -> None:
    """Undo :func:`take_checkpoint_hooks`."""
    for hooks in reversed(taken):
        substrate.push_saved_hooks(*hooks)


def differentiated() -> bool:
    """True if a level that differentiates is on the stack."""
    if not substrate.transforms_active():
        return False
    transforms = substrate.level_transforms()
    return GRAD in transforms or JVP in transforms


class jvp_level:
    """A forward-mode level, with forward-mode differentiation on; entering gives its number."""

    __slots__ = ("_saved",)

    def __enter__(self) -> int:
        self._saved = substrate.forward_grad_enabled(), substrate.requires_grad_allowed()
        level = substrate.enter_jvp()
        substrate.set_forward_grad_enabled(True)
        substrate.set_requires_grad_allowed(True)
        return level

    def __exit__(self, *error: object) -> None:
        substrate.exit_jvp()
        substrate.set_forward_grad_enabled(self._saved[0])
        substrate.set_requires_grad_allowed(self._saved[1])


class vmap_level:
    """A vectorising level of ``batch_size`` samples; entering gives its number."""

    __slots__ = ("_batch_size", "_randomness")

    def __init__(self, batch_size: int, randomness: str) -> None:
        self._batch_size = batch_size
        self._randomness = randomness

    def __enter__(self) -> int:
        return substrate.enter_vmap(self._batch_size, self._randomness)

    def __exit__(self, *error: object) -> None:
        substrate.exit_vmap()
