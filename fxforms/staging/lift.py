"""Captured tensors become inputs of a graph at the moment an operator meets them."""

from __future__ import annotations

from typing import Any

import torch

from fxforms._tree import map_tensors
from fxforms.staging import fake
from fxforms.staging.changes import CapturedTraced, form
from fxforms.staging.graphs import writes
from fxforms.staging.simplify import MISSING_TANGENT

_aten = torch.ops.aten
_FRESH = (_aten.lift_fresh.default, _aten.lift_fresh_copy.default)


class Lift(fake.DispatchMode):  # type: ignore[no-untyped-call]
    """Puts a fake input of the graph in the place of each real tensor that an operator is given.

    So a real tensor is a reference, never a constant, and is not written to. What
    ``torch.tensor([...])`` makes inside the function is a constant.

    Attributes:
        captured: the real tensors met so far.
        inputs: the fake inputs in their places.
        forms: the shape and memory that each of these came with.
        gradients: the ``.grad`` that each of the captured tensors came with.
    """

    supports_higher_order_operators = True

    def __init__(self, mode: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.captured: list[torch.Tensor] = []
        self._mode = mode
        self.inputs: list[torch.Tensor] = []
        self.forms: list[tuple[Any, ...]] = []
        self.gradients: list[torch.Tensor | None] = []
        self._places: dict[int, int] = {}

    def input_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake input that stands for ``tensor``; a fake tensor stands for itself."""
        if fake.is_fake(tensor):
            return tensor
        if fake.is_aside():
            return fake.stand_in(self._mode, tensor)
        if id(tensor) not in self._places:
            self.take(tensor)
        return self.inputs[self._places[id(tensor)]]

    def take(self, tensor: torch.Tensor) -> None:
        """Make an input of the graph that stands for ``tensor``."""
        made = fake.new_input(self._mode, tensor, f"captured_{len(self.captured)}")
        self._places[id(tensor)] = len(self.captured)
        self.captured.append(tensor)
        self.gradients.append(tensor.grad if tensor.is_leaf else None)
        self.inputs.append(made)
        self.forms.append(form(made))

    def put_back_gradients(self) -> None:
        """Take traced tensors out of the ``.grad`` of what is captured."""
        for tensor, gradient in zip(self.captured, self.gradients):
            if tensor.is_leaf and fake.is_fake(tensor.grad):
                tensor.grad = gradient

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _aten.native_batch_norm.default and args[3] is not None:
            func = _aten._native_batch_norm_legit.default  # its schema tells what it writes to
        if writes(func):
            refuse_recorded(args[0])
        if func not in _FRESH:
            args, kwargs = map_tensors(self.input_for, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func is MISSING_TANGENT:  # operators of torch read the wrong device off a fake one
            return torch.zeros_like(result)
        return result


class PartLift(Lift):  # type: ignore[no-untyped-call]
    """The same for a part of a graph; a tensor of the graph around becomes an input too."""

    def input_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """The input of the part that stands for ``tensor``, if it is not of the part itself."""
        if not fake.is_fake(tensor):
            return super().input_for(tensor)
        if not (fake.is_aside() or fake.is_recorded(tensor)):
            self.take(tensor)
        return tensor


def refuse_recorded(target: Any) -> None:
    """Raise CapturedTraced if autograd would record a write to ``target``, a captured tensor."""
    held = isinstance(target, torch.Tensor) and not fake.is_fake(target) and target.requires_grad
    if held and not target.is_leaf and torch.is_grad_enabled():
        raise CapturedTraced
