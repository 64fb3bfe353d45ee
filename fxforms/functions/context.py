"""The ``ctx`` that a Function's methods get."""

from __future__ import annotations

from typing import Any

import torch

from fxforms import _substrate as substrate


class NodeContext(substrate.BackwardCFunction):
    """A node of an autograd graph; the ``ctx`` of ``setup_context`` and ``backward``.

    The class of each Function's node derives from this one and holds its rules as ``_rules``.
    """

    _rules: Any

    @property
    def saved_tensors(self) -> Any:  # type: ignore[override]
        """What ``save_for_backward`` was given, free of wrappers of ended levels."""
        unwrap = substrate.unwrap_if_dead
        saved = substrate.read_saved_tensors(self)
        return tuple([None if x is None else unwrap(x) for x in saved])

    def apply(self, *cotangents: Any) -> Any:
        """Called by the autograd engine: the Function's backward rule."""
        return self._rules.run_backward(self, cotangents)


class RuleContext:
    """A ``ctx`` outside any autograd graph: for jvp rules and for rules run under a mapped level.

    Any other attribute may be set on it, as on every ``ctx``.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved_for_backward: tuple[torch.Tensor | None, ...] = ()
        self._saved_for_forward: tuple[torch.Tensor | None, ...] | None = None
        self._dirty: tuple[torch.Tensor, ...] = ()
        self._non_differentiable: tuple[torch.Tensor, ...] = ()
        self._materialize = True

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Keep ``tensors`` for ``backward``."""
        self._saved_for_backward = tensors

    def save_for_forward(self, *tensors: torch.Tensor | None) -> None:
        """Keep ``tensors`` for ``jvp``."""
        self._saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[torch.Tensor | None, ...]:
        """What was saved for ``jvp``, else what was saved for ``backward``."""
        if self._saved_for_forward is not None:
            return self._saved_for_forward
        return self._saved_for_backward

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Declare inputs that ``forward`` changed in place."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Declare outputs that have no derivative."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether absent cotangents and tangents arrive as zeros (the default) or as None."""
        self._materialize = value

    def attributes(self) -> dict[str, Any]:
        """What the user set on this ``ctx``."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}


_OWN = frozenset(vars(RuleContext(())))


def among(tensor: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> bool:
    """True if ``tensor`` is one of ``tensors``, by identity."""
    return any(tensor is other for other in tensors)
