"""Captured tensors become inputs of a graph at the moment an operator meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms._tree import map_tensors
from fxforms.staging import fake

_FRESH = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


class Lift(fake.DispatchMode):  # type: ignore[no-untyped-call]
    """Puts a fake input of the graph in the place of each real tensor that an operator is given.

    So a real tensor is a reference, never a constant, and is not written to. What
    ``torch.tensor([...])`` makes inside the function is a constant.

    Attributes:
        captured: the real tensors met so far.
    """

    supports_higher_order_operators = True

    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.captured: list[torch.Tensor] = []
        self._mode = mode
        self._inputs: dict[int, torch.Tensor] = {}

    def input_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake input that stands for ``tensor``; a fake tensor stands for itself."""
        if fake.is_fake(tensor):
            return tensor
        if fake.is_aside():
            return fake.stand_in(self._mode, tensor)
        if id(tensor) not in self._inputs:
            name = f"captured_{len(self.captured)}"
            self.captured.append(tensor)
            self._inputs[id(tensor)] = fake.new_input(self._mode, tensor, name)
        return self._inputs[id(tensor)]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in _FRESH:
            args, kwargs = map_tensors(self.input_for, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class PartLift(Lift):  # type: ignore[no-untyped-call]
    """The same for a part of a graph; a tensor of the graph around becomes an input too."""

    def input_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The input of the part that stands for ``tensor``, if it is not of the part itself."""
        if not fake.is_fake(tensor):
            return super().input_for(tensor)
        if not (fake.is_aside() or fake.is_recorded(tensor)):
            name = f"captured_{len(self.captured)}"
            self.captured.append(tensor)
            fake.new_input(self._mode, tensor, name)
        return tensor
