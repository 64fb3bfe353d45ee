"""Physical tensors and where their batch is: putting it on, moving it, summing over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate

Dims = tuple[int | None, ...]


def batch(values: Sequence[Any], dims: Sequence[int | None], level: int) -> tuple[Any, ...]:
    """``values`` batched at ``level``."""
    add = substrate.add_batch_dim
    return tuple(
        [
            value if dim is None or not isinstance(value, torch.Tensor) else add(value, dim, level)
            for value, dim in zip(values, dims)
        ]
    )


def unbatch(value: Any, level: int) -> tuple[Any, int | None]:
    """``value`` off vmap ``level``, and its batch dim."""
    return (
        substrate.unwrap_batched(value, level) if isinstance(value, torch.Tensor) else (value, None)
    )


def reduce_to(gradient: torch.Tensor, shape: torch.Size | None) -> torch.Tensor:
    """``gradient`` summed to ``shape`` if that broadcasts to it; else as it is, for the engine."""
    if shape is None or gradient.shape == shape:
        return gradient
    tail = gradient.shape[gradient.dim() - len(shape) :]
    fits = len(shape) <= gradient.dim() and all(a in (1, b) for a, b in zip(shape, tail))
    return gradient.sum_to_size(shape) if fits else gradient


def place_gradient(
    gradient: torch.Tensor | None, dim: int | None, in_dim: int | None, batch_size: int
) -> torch.Tensor | None:
    """The physical gradient of an input whose batch dim is ``in_dim``."""
    if gradient is None:
        return None
    if in_dim is None:
        return gradient if dim is None else gradient.sum(dim)
    return move_batch(gradient, dim, in_dim, batch_size)


def move_batch(value: torch.Tensor, dim: int | None, target: int, batch_size: int) -> torch.Tensor:
    """``value`` with its batch at ``target``, repeated there if it has none."""
    if dim is None:
        value, dim = value.unsqueeze(0).expand(batch_size, *value.shape), 0
    return value if dim == target else value.movedim(dim, target)
