"""The tensors that a branch uses without being given them, from closures and modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms._tree import leaves, map_tensors

_T = torch.Tensor
# Ask of a tensor what only itself can answer, as every getter does but for these.
_ABOUT_ITSELF = {_T.requires_grad_, _T.register_hook, _T.retain_grad, _T.backward}
_VIEWS = [getattr(_T, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag", "data")]


def computes(func: Callable[..., Any]) -> bool:
    """False for what tells something of a tensor, or registers something with it."""
    if getattr(func, "__name__", "") == "__get__":
        return func in _VIEWS
    return func not in _ABOUT_ITSELF


class _Watching(TorchFunctionMode):
    """Sees each tensor that a torch function is given, and what it returns."""

    def replacement(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the function is given in the place of ``tensor``."""
        return tensor

    def made(self, output: Any) -> None:
        """``output`` was returned inside."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if computes(func):
            args, kwargs = map_tensors(self.replacement, (args, kwargs or {}))
        output = func(*args, **(kwargs or {}))
        self.made(output)
        return output


class _Outside(_Watching):
    """Tells the tensors from outside from those that are given or made inside.

    Not where a rule of the operator works with this level lowered: it was given what it needs.
    """

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.level = substrate.level_depth()
        self._inside: dict[int, Callable[[], torch.Tensor | None]] = {}
        self.made(list(given))

    def made(self, output: Any) -> None:
        for x in leaves(output):
            if isinstance(x, torch.Tensor):
                self._inside[id(x)] = weakref.ref(x)

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """True if ``tensor`` was neither given nor seen to be made."""
        if substrate.level_depth() < self.level:
            return False
        known = self._inside.get(id(tensor))
        return known is None or known() is not tensor


class Found(_Outside):
    """Notes the tensors from outside.

    Attributes:
        tensors: those seen so far.
    """

    def __init__(
        self, given: Sequence[torch.Tensor], was_there: Callable[[torch.Tensor], bool]
    ) -> None:
        """``was_there``: True for a tensor that is older than the run, False if it is made in it.

        A custom Function of torch, which no mode sees, may have made it.
        """
        super().__init__(given)
        self.tensors: list[torch.Tensor] = []
        self._was_there = was_there

    def replacement(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_outside(tensor):
            self.made(tensor)
            if substrate.level_of(tensor) <= self.level and self._was_there(tensor):
                self.tensors.append(tensor)
        return tensor


class Replaced(_Watching):
    """Gives functions other tensors in the place of those that a branch captures."""

    def __init__(self, captured: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._others = {id(x): other for x, other in zip(captured, others)}

    def replacement(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._others.get(id(tensor), tensor)


class Masked(_Outside):
    """Puts ``mask(tensor)`` in the place of each tensor from outside."""

    def __init__(
        self, given: Sequence[torch.Tensor], mask: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__(given)
        self._mask = mask
        self._masks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._versions: dict[int, list[int]] = {}

    def replacement(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.is_outside(tensor):
            return tensor
        if id(tensor) not in self._masks:
            self._masks[id(tensor)] = pair = tensor, self._mask(tensor)
            self._versions[id(tensor)] = substrate.versions(pair)
        return self._masks[id(tensor)][1]

    def changed(self) -> bool:
        """True if a tensor from outside was changed in place."""
        return any(substrate.versions(x) != self._versions[i] for i, x in self._masks.items())
