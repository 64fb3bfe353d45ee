"""Entering a level of each transform, and leaving it whatever happens.

NOTE [grad mode crosses levels]

- Outside: ``with torch.no_grad(): grad(f)(x)`` differentiates all the same, for a transform's
  result does not depend on a mode outside the function. The result is a constant to whatever
  encloses the ``no_grad``.
- Inside: ``no_grad`` within ``f`` holds for this level and all levels below it.

So a grad level turns recording on and remembers the mode outside; whoever lowers past it turns
recording off again if that mode was off, and never on.
"""

from __future__ import annotations

from types import TracebackType

import torch

from fxforms import _substrate as substrate


class _Level:
    """A level as a context manager; entering gives its number."""

    __slots__ = ("_saved",)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Pop the level and restore the modes."""
        raise NotImplementedError


class grad_level(_Level):
    """A reverse-mode level, with recording and ``requires_grad_`` on."""

    __slots__ = ()

    def __enter__(self) -> int:
        self._saved = torch.is_grad_enabled(), substrate.requires_grad_allowed()
        level = substrate.enter_grad()
        substrate.set_grad_enabled(True)
        substrate.set_requires_grad_allowed(True)
        return level

    def leave(self) -> None:
        substrate.exit_grad()
        substrate.set_grad_enabled(self._saved[0])
        substrate.set_requires_grad_allowed(self._saved[1])


class jvp_level(_Level):
    """A forward-mode level, with forward-mode differentiation on."""

    __slots__ = ()

    def __enter__(self) -> int:
        self._saved = substrate.forward_grad_enabled(), substrate.requires_grad_allowed()
        level = substrate.enter_jvp()
        substrate.set_forward_grad_enabled(True)
        substrate.set_requires_grad_allowed(True)
        return level

    def leave(self) -> None:
        substrate.exit_jvp()
        substrate.set_forward_grad_enabled(self._saved[0])
        substrate.set_requires_grad_allowed(self._saved[1])


class vmap_level(_Level):
    """A vectorising level of ``batch_size`` samples."""

    __slots__ = ("_batch_size", "_randomness")

    def __init__(self, batch_size: int, randomness: str) -> None:
        self._batch_size = batch_size
        self._randomness = randomness

    def __enter__(self) -> int:
        substrate.load_vmap_decompositions()
        return substrate.enter_vmap(self._batch_size, self._randomness)

    def leave(self) -> None:
        substrate.exit_vmap()
