"""Captured tensors as leaves of their own, while plain gradients of a function are traced.

The real tensors have hooks, and a graph behind them, which autograd runs at the real node when the
staged gradients arrive there. So the trace must end before them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxforms._tree import map_tensors
from fxforms.functions.presented import presented
from fxforms.staging import fake

_T: Any = torch.Tensor
# What asks for, or changes, the tensor itself and not its numbers.
_OF_THE_TENSOR = {
    _T.grad.__get__,
    _T.grad.__set__,
    _T.is_leaf.__get__,
    _T.grad_fn.__get__,
    _T.register_hook,
    _T.register_post_accumulate_grad_hook,
    _T.retain_grad,
    _T.requires_grad_,
    _T.requires_grad.__set__,
}


def holds_gradient(tensor: torch.Tensor, captured: Sequence[torch.Tensor]) -> Any:
    """True if the ``.grad`` of ``tensor`` is one of ``captured``."""
    return tensor.is_leaf and any(tensor.grad is x for x in captured)


def leaf_for(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf with the numbers of ``tensor``; the one of an outer trace, which differentiates it."""
    found = presented(tensor)
    return tensor.detach().requires_grad_() if found is tensor else found


class StandIns(TorchFunctionMode):
    """Gives each function of torch a leaf in the place of each of some tensors.

    Attributes:
        leaves: those leaves, in the order of the tensors, with their numbers and memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], captured: Sequence[torch.Tensor]) -> None:
        """``captured``: what the function uses, any ``.grad`` of ``tensors`` among it."""
        super().__init__()
        self.leaves = [leaf_for(x) for x in tensors]
        for leaf, tensor in zip(self.leaves, tensors):
            gradient: Any = tensor.grad if holds_gradient(tensor, captured) else None
            leaf.grad = None if gradient is None else gradient.detach()
        self._places = {id(x): leaf for x, leaf in zip(tensors, self.leaves)}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in _OF_THE_TENSOR:
            args, kwargs = map_tensors(self._leaf_for, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _leaf_for(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._places.get(id(tensor), tensor)


@contextlib.contextmanager
def without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Keep the hooks of ``tensors`` from running.

    For those that go past every function of torch, as the argument of a custom Function does.
    """
    with fake.DisableTorchFunction():  # else those of what an outer trace has in their places
        tables: list[Any] = [x._backward_hooks for x in tensors if x._backward_hooks]
    before = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, before):
            table.update(hooks)
