"""``torch.utils.checkpoint`` inside a transform.

Its recomputation replays the block through saved-tensor hooks on one graph, which the levels do not
have: a backward pass runs after its level has ended. Inside a transform the block therefore runs as
it is, with the right derivatives of every order, and keeps its intermediate tensors.

This is the only thing in torch that importing fxforms changes, and it changes nothing outside of a
transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fxforms import _substrate as substrate

_generator = substrate.torch_checkpoint._checkpoint_without_reentrant_generator
_reentrant = substrate.torch_checkpoint.CheckpointFunction
_reentrant_apply = _reentrant.apply


def _run_as_it_is() -> Iterator[None]:
    """The protocol of torch's generator, doing nothing before and after the block."""
    yield


def _non_reentrant(*args: Any, **kwargs: Any) -> Any:
    """torch's generator, or one that leaves the block alone inside a transform."""
    if substrate.transforms_active():
        return _run_as_it_is()
    return _generator(*args, **kwargs)


def _apply(cls: Any, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """torch's reentrant checkpoint, or a plain call of the block inside a transform."""
    if substrate.transforms_active():
        return function(*args)
    return _reentrant_apply(function, preserve, *args)


def install() -> None:
    """Make ``torch.utils.checkpoint.checkpoint`` work inside transforms."""
    substrate.torch_checkpoint._checkpoint_without_reentrant_generator = _non_reentrant
    _reentrant.apply = classmethod(_apply)
