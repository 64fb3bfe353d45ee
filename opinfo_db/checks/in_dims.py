"""Which ``in_dims`` are tried on a sample, and the batches made for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

import torch
from torch import Tensor

from opinfo_db.checks.contract import InDims
from opinfo_db.core import OpInfo

#: All choices of three tensors (3**3 less the one that maps nothing) fit.
MOST_CHOICES = 26
#: For compositions, which are many.
FEW_CHOICES = 4


def _telling(count: int) -> Iterator[InDims]:
    """The choices that tell most, first: all, one alone, all but one; then every product."""
    yield (0,) * count
    yield (-1,) * count
    for only in range(count):
        yield tuple(0 if i == only else None for i in range(count))
    for never in range(count):
        yield tuple(None if i == never else -1 for i in range(count))
    yield from product((0, -1, None), repeat=count)


def choices(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """The choices for ``vmap`` itself: 0, -1 or None for each tensor, at most 26 of them."""
    mapped = (c for c in _telling(len(tensors)) if any(d is not None for d in c))
    return tuple(dict.fromkeys(islice(mapped, 2 * MOST_CHOICES)))[:MOST_CHOICES]


def few_choices(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """At most four choices, for compositions in which ``vmap`` is innermost."""
    return choices(tensors)[:FEW_CHOICES]


def few_choices_or_none(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """As :func:`few_choices`, and no input mapped: only cotangents or tangents are then."""
    return (*few_choices(tensors), (None,) * len(tensors))


def outer_choice(in_dims: InDims) -> InDims:
    """The choice for an outer ``vmap``: the same one backwards, so that the two differ."""
    return in_dims[::-1]


def batch(entry: OpInfo, tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """A batch of variants of ``tensor`` along a new dim ``dim``; itself if that is ``None``."""
    if dim is None:
        return tensor
    members = [entry.vary(tensor, index) for index in range(size)]
    return torch.stack(members, dim)
