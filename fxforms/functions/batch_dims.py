"""Physical tensors and where their batch is: putting it on, moving it, summing over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate

Dims = tuple[int | None, ...]


def batch(values: Sequence[Any], dims: Sequence[int | None], level: int) -> tuple[Any, ...]:
    """``values`` batched at ``level``."""
    add, found = substrate.add_batch_dim, []
    for value, dim in zip(values, dims):  # a loop: each call of a mapped Function comes here thrice
        if dim is not None and isinstance(value, torch.Tensor):
            value = add(value, dim, level)
        found.append(value)
    return tuple(found)


def unbatch(value: Any, level: int) -> tuple[Any, int | None]:
    """``value`` off vmap ``level``, and its batch dim."""
    return (
        substrate.unwrap_batched(value, level) if isinstance(value, torch.Tensor) else (value, None)
    )


def place_gradient(
    gradient: torch.Tensor,
    level: int,
    in_dim: int | None,
    shape: torch.Size | None,
    batch_size: int,
) -> torch.Tensor:
    """The physical gradient, off vmap ``level``, of an operand of ``shape`` batched at ``in_dim``.

    A rule may return one that broadcasts to its operand, which is summed here, sample by sample:
    autograd cannot do it once the batch dim is in the way.
    """
    value, dim = substrate.unwrap_batched(gradient, level)
    if dim is not None and dim == in_dim and value.shape == shape:
        return value
    if shape is not None:
        value, dim = substrate.unwrap_batched(reduce_to(gradient, sample(shape, in_dim)), level)
    if in_dim is None:
        return value if dim is None else value.sum(dim)
    return move_batch(value, dim, in_dim, batch_size)


def sample(shape: torch.Size, in_dim: int | None) -> tuple[int, ...]:
    """The shape of one sample of a tensor of ``shape`` that is batched at ``in_dim``."""
    return tuple([size for dim, size in enumerate(shape) if dim != in_dim])


def reduce_to(gradient: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """``gradient`` summed to ``shape`` if that broadcasts to it; else as it is, for the engine."""
    tail = gradient.shape[gradient.dim() - len(shape) :]
    fits = len(shape) <= gradient.dim() and all(a in (1, b) for a, b in zip(shape, tail))
    return gradient if gradient.shape == shape or not fits else gradient.sum_to_size(shape)


def move_batch(value: torch.Tensor, dim: int | None, target: int, batch_size: int) -> torch.Tensor:
    """``value`` with its batch at ``target``, repeated there if it has none."""
    if dim is None:
        value, dim = value.unsqueeze(0).expand(batch_size, *value.shape), 0
    return value if dim == target else value.movedim(dim, target)
