"""``torch.utils.checkpoint`` inside a transform.

Its recomputation replays the block through saved-tensor hooks on one graph, which the levels do not
have: a backward pass runs after its level has ended. Inside a transform the block therefore runs as
it is, with the right derivatives of every order, and keeps its intermediate tensors.

This is the only thing that importing fxforms changes in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

from fxforms import _substrate as substrate

_generator: Callable[..., Any] = torch_checkpoint._checkpoint_without_reentrant_generator
_reentrant: Any = torch_checkpoint.CheckpointFunction


def _run_as_it_is() -> Iterator[None]:
    """The protocol of torch's generator, doing nothing before and after the block."""
    yield


def _non_reentrant(*args: Any, **kwargs: Any) -> Any:
    """torch's generator, or one that leaves the block alone inside a transform."""
    if substrate.transforms_active():
        return _run_as_it_is()
    return _generator(*args, **kwargs)


class _Reentrant(_reentrant):  # type: ignore[misc]
    """torch's reentrant checkpoint, or a plain call of the block inside a transform."""

    @classmethod
    def apply(cls, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if substrate.transforms_active():
            return function(*args)
        return _reentrant.apply(function, preserve, *args)


def install() -> None:
    """Make ``torch.utils.checkpoint.checkpoint`` work inside transforms."""
    torch_checkpoint._checkpoint_without_reentrant_generator = _non_reentrant
    torch_checkpoint.CheckpointFunction = _Reentrant  # type: ignore[misc]
