"""Bodies and rules that call the autograd engine themselves (``torch.autograd.grad``).

What the engine gives is a constant to every level unless the call asks for a graph, and mostly it
is asked on a detached leaf. A derivative of such a value would be a silent zero, so where one may
be asked for, the call is made to record, and a detached tensor stays part of the graph.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms.errors import GradientError
from fxforms.functions.context import among
from fxforms.functions.derive import ALIASES
from fxforms.functions.faults import saved_as_input

_TENSOR: Any = torch.Tensor
CUTS = ALIASES | {_TENSOR.detach_}
REQUIRES = frozenset({_TENSOR.requires_grad_, _TENSOR.requires_grad.__set__})
ENGINE = frozenset({torch.autograd.grad, _TENSOR.backward})
_GRAD = _TENSOR.grad.__get__
_MODES = (__name__, "fxforms.functions.derive", "fxforms.functions.residuals")


class Recorded(TorchFunctionMode):
    """Runs code at the level of its making so that what it asks of the engine is recorded.

    ``x.detach()`` is a view, ``.backward()`` fills the ``.grad`` of the tensors that were told to
    require one.
    """

    def __init__(self, name: str = "forward") -> None:
        super().__init__()
        self.name = name
        self.depth = substrate.level_depth()
        self.leaves: list[torch.Tensor] = []
        self.aliases: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []
        self.refused: GradientError | None = None
        self.gradients: dict[int, torch.Tensor | None] = {}
        self.inference = torch.is_inference_mode_enabled()

    def own(self) -> bool:
        """False inside a transform that the code calls."""
        return substrate.level_depth() == self.depth

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        return self.recorded(func, args, kwargs) if self.own() else func(*args, **kwargs)

    def recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func``, which the code calls at its own level.

        ``no_grad`` changes no value, and inference mode none but for recording.
        """
        if func is substrate.set_grad_enabled:
            return None
        if not self.inference and torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                return self.recorded(func, args, kwargs)
        if func is _TENSOR.detach_:
            return args[0]
        if func in ALIASES:
            return self.alias(args[0])
        if func in REQUIRES:
            self.leaves.append(args[0])
            return args[0] if args[0].requires_grad else allowed(func, args, kwargs)
        if func is torch.autograd.grad:
            self.check_inputs(kwargs["inputs"] if "inputs" in kwargs else args[1])
            return func(*args, **kwargs | {"create_graph": True})
        if func is _TENSOR.backward:
            return self.backward(*args, **kwargs)
        if func == _GRAD and id(args[0]) in self.gradients:
            return self.gradients[id(args[0])]
        return func(*args, **kwargs)

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` detached, but for the derivative that is asked of the code."""
        found = tensor.view_as(tensor)
        self.aliases.append(found)
        if tensor.requires_grad:
            self.sources.append(tensor)
        return found

    def check_inputs(self, inputs: Any) -> None:
        """Raise GradientError if the engine would not give what it gives without recording.

        A gradient by a tensor that the code did not make would follow what it has detached.
        """
        given = [inputs] if isinstance(inputs, _TENSOR) else [*inputs]
        others = [x for x in given if not among(x, (*self.aliases, *self.leaves))]
        if any(not x.requires_grad for x in others) or any(
            reaches(source, others) for source in self.sources if others
        ):
            self.refused = saved_as_input(self.name)
            raise self.refused

    def backward(self, tensor: Any, gradient: Any = None, inputs: Any = None, **more: Any) -> None:
        """``tensor.backward(gradient)``; leaves of others get their gradient as ever."""
        given = (inputs,) if isinstance(inputs, _TENSOR) else inputs and tuple(inputs)
        leaves = [x for x in self.leaves if given is None or among(x, given)]
        found = torch.autograd.grad(
            tensor, leaves or [tensor], gradient, create_graph=True, allow_unused=True
        )
        for leaf, new in zip(leaves, found):
            before = self.gradients.get(id(leaf))
            self.gradients[id(leaf)] = new if before is None or new is None else before + new
        others = given if given is not None else leaves_between(tensor, self.leaves)
        others = [
            x for x in others if not (among(x, tuple(self.leaves)) or substrate.is_wrapped(x))
        ]
        if others:
            self.check_inputs(others)
            tensor.backward(gradient, retain_graph=True, inputs=others)


class EngineCalled(Exception):
    """A rule calls the engine at its own level."""


class Watched(Recorded):
    """Raises EngineCalled if code calls the engine, and else leaves it alone.

    Notes in ``off`` if the code turns recording off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.off = False

    def recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in ENGINE:
            raise EngineCalled
        if func is substrate.set_grad_enabled and args == (False,) and by_user():
            self.off = True
        if not self.inference and torch.is_inference_mode_enabled():
            self.off = True
        return allowed(func, args, kwargs) if func in REQUIRES else func(*args, **kwargs)


def by_user() -> bool:
    """True if what a mode sees now is not called by fxforms itself."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name == "torch.utils._contextlib":  # a decorated function, and fxforms has none
            return True
        if not (name.startswith("torch.") or name in _MODES):
            return not name.startswith("fxforms.")
        frame = frame.f_back
    return True


def allowed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func``, which sets ``requires_grad``; the engine forgets that a level allows it."""
    if substrate.on_vmap_level():
        return func(*args, **kwargs)
    before: bool = substrate.requires_grad_allowed()
    substrate.set_requires_grad_allowed(True)
    try:
        return func(*args, **kwargs)
    finally:
        substrate.set_requires_grad_allowed(before)


def reaches(tensor: torch.Tensor, ends: list[torch.Tensor]) -> bool:
    """True if the graph of ``tensor`` reaches one of ``ends``."""
    if among(tensor, tuple(ends)):
        return True
    nodes = {x.grad_fn for x in ends} - {None}
    seen: set[Any] = {None}
    waiting: list[Any] = [tensor.grad_fn]
    for node in waiting:
        if node in nodes or among(getattr(node, "variable", None), tuple(ends)):
            return True
        if node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def leaves_between(tensor: torch.Tensor, ends: list[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that the graph of ``tensor`` reaches other than by way of ``ends``."""
    seen = {x.grad_fn for x in ends} | {None}
    waiting, found = [tensor.grad_fn], []
    for node in waiting:
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found
