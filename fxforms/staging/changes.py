"""Changes of arguments that a graph does not compute, and so cannot carry to the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten, is_atom
from fxforms.errors import TraceError, describe
from fxforms.staging import fake

Holder = tuple[Any, dict[Any, Any]]  # a container, and what was in it by key


class CapturedTraced(Exception):
    """The function must run as it is.

    It uses a tensor of a transform outside of ``jit`` that is not its argument, or it records what
    it does under ``enable_grad`` where its caller has recording off.
    """


def holders(tree: Any) -> list[Holder]:
    """The containers in ``tree``, each with a shallow copy of what it holds."""
    found: list[Holder] = []
    waiting = [tree]
    while waiting:
        here = waiting.pop()
        if not is_atom(here) and not flatten(here)[1].is_leaf():
            found.append((here, held(here)))
            waiting += found[-1][1].values()
    return found


def held(container: Any) -> dict[Any, Any]:
    """What ``container`` holds, by key, position or attribute."""
    if isinstance(container, dict):
        return dict(container)
    if hasattr(container, "__dict__") and not hasattr(container, "__len__"):
        return dict(vars(container))
    return dict(enumerate(container)) if hasattr(container, "__iter__") else {}


def refuse_changed(name: str, before: Sequence[Holder]) -> None:
    """Raise TraceError if the function ``name`` has changed what a container holds."""
    for container, contents in before:
        places = [*changed_places(contents, held(container))]
        if places:
            raise TraceError(
                f"jit of {name}: the function changes a {type(container).__name__} among its "
                f"arguments ({places[0]}), which a graph cannot do to the caller's. Work on a copy "
                f"(dict(x), list(x)) and return it, or change the tensors in it in place (copy_, "
                f"add_), which jit carries over."
            )


def changed_places(before: dict[Any, Any], after: dict[Any, Any]) -> Iterator[str]:
    """What is new, gone or another object."""
    for key in after:
        if key not in before:
            yield f"{key!r} is new"
        elif after[key] is not before[key]:
            yield f"{key!r} is bound to another value"
    for key in before:
        if key not in after:
            yield f"{key!r} is removed"


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph leaves as it is of a tensor that it writes to; sizes may be symbols."""
    if tensor.layout is not torch.strided:
        return (tuple(tensor.shape),)
    layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return *layout, tensor.untyped_storage()._cdata


def refuse_reshaped(
    tensors: Sequence[torch.Tensor], before: Sequence[tuple[Any, ...]], role: str
) -> None:
    """Raise TraceError if one of ``tensors`` has another shape, layout or memory than before."""
    for tensor, was in zip(tensors, before):
        if str(form(tensor)) != str(was):  # as text: comparing symbols would fix them
            raise TraceError(
                f"jit: the function changes the shape or the memory of {role} in place: from shape "
                f"{was[0]} to {describe(tensor)}. A graph changes only "
                f"the numbers of the caller's tensor. Take a view or a copy (x.t(), x.clone()) and "
                f"return it."
            )


_T: Any = torch.Tensor
_REPLACE = {_T.data.__set__, _T.set_, _T.resize_, _T.resize_as_}
_GRAD, _SET_GRAD = _T.grad.__get__, _T.grad.__set__
ATTRIBUTES = {*_REPLACE, _GRAD, _SET_GRAD}


class Attributes:
    """What a traced function reads and replaces of tensors besides their numbers.

    Attributes:
        arguments: the traced arguments.
        gradients: the captured tensors whose ``.grad`` is read.
        asked: the captured tensors of which anything is read, by their ids.
    """

    def __init__(self) -> None:
        self.arguments: Sequence[torch.Tensor] = ()
        self.gradients: list[torch.Tensor] = []
        self.asked: dict[int, torch.Tensor] = {}

    def note_asked(self, tensor: torch.Tensor) -> None:
        """``tensor`` is given to a function of torch."""
        if not (fake.is_fake(tensor) or substrate.is_wrapped(tensor)):
            self.asked[id(tensor)] = tensor

    def meet(self, func: Any, tensor: torch.Tensor, traced: bool) -> str:
        """Note the use ``func`` of ``tensor``; why it is refused, empty if it is not."""
        local = traced and all(tensor is not x for x in self.arguments)
        if func in (_T.resize_, _T.resize_as_):
            return "" if traced else self._replaced(func)
        if func in _REPLACE:
            return self._replaced(func)
        if func == _GRAD and not traced:
            self.gradients.append(tensor)
            return ""
        if local:
            return ""
        verb = "reads" if func == _GRAD else "sets"
        return (
            f"jit: the function {verb} .grad of {describe(tensor)} that its caller owns. A graph "
            f"takes and gives tensors: pass the gradient as an argument, or return it."
        )

    @staticmethod
    def _replaced(func: Any) -> str:
        what = ".data =" if func == _T.data.__set__ else f"{func.__name__}()"
        return (
            f"jit: {what} puts other memory under a tensor, and a graph changes numbers alone. "
            f"Write x.copy_(y), under torch.no_grad() for a leaf that requires grad, or use y."
        )


def turned(tensors: Sequence[torch.Tensor], before: Sequence[bool]) -> dict[int, bool]:
    """Those of ``tensors`` whose ``requires_grad`` is not as before, and what it is."""
    pairs = enumerate(zip(tensors, before))
    return {i: x.requires_grad for i, (x, was) in pairs if x.requires_grad != was}
