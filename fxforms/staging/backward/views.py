"""The backward of an in-place change of a view (CopySlices, AsStrided) by ordinary operators.

Autograd knows the view by its memory layout. Where selects and slices of the base give it, they
are used; otherwise the elements are gathered one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Ints = Sequence[int]
Cut = tuple[int, int, int]  # start, stop, step


@dataclass(frozen=True)
class Geometry:
    """The layout of a base and of a view of it."""

    base_sizes: Ints
    base_strides: Ints
    base_offset: int
    sizes: Ints
    strides: Ints
    view_offset: int

    @property
    def offset(self) -> int:
        """Where the view starts in the base."""
        return self.view_offset - self.base_offset


def prologue(grads: Sequence[Any], *layout: Any) -> list[Any]:
    """The gradient of the base, its part at the view, and a copy of that for the inner formula."""
    (grad,) = grads
    if grad is None:
        return [None, None, None]
    part = take(grad, Geometry(*layout))
    return [grad, part, part.clone(memory_format=torch.contiguous_format)]


def epilogue(needs: Sequence[bool], base: Any, found: Sequence[Any], *layout: Any) -> list[Any]:
    """The gradients of the inputs: of the base with the view's part replaced, and of the others."""
    if not needs[0] or found[0] is None:
        return [x if need else None for x, need in zip(found, needs)]
    replaced = put(base, found[0], Geometry(*layout))
    return [replaced, *[x if need else None for x, need in zip(found[1:], needs[1:])]]


def as_strided_backward(
    grads: Sequence[Any], needs: Any, base: Any, sizes: Ints, offset: int | None, strides: Ints
) -> list[Any] | None:
    """The gradient of ``as_strided``; None where it is not a view of the elements of its input."""
    (grad,) = grads
    base_sizes, base_strides, base_offset = base
    start = base_offset if offset is None else offset
    view = Geometry(base_sizes, base_strides, base_offset, sizes, strides, start)
    if grad is None or not is_inside(view):
        return None
    zeros = grad.new_zeros(base_sizes)
    if cuts_of(view) is not None:
        return [put(zeros, grad, view)]
    index = positions(view, grad.device)
    found = zeros.view(-1).index_put((index,), grad, accumulate=True)
    return [found.view(zeros.shape)]


def is_inside(view: Geometry) -> bool:
    """True if the base fills its memory without overlap, and the view stays within."""
    extent = 1
    for stride, size in sorted(zip(view.base_strides, view.base_sizes)):
        if size != 1:
            if stride != extent:
                return False
            extent *= size
    last = view.offset + sum((n - 1) * s for n, s in zip(view.sizes, view.strides))
    return math.prod(view.sizes) > 0 and 0 <= view.offset <= last < extent


def take(grad: torch.Tensor, view: Geometry) -> torch.Tensor:
    """The part of ``grad``, of the base's shape, that ``view`` shows."""
    cuts = cuts_of(view)
    if cuts is None:
        return grad.reshape(-1)[positions(view, grad.device)]
    for dim, cut in reversed(list(enumerate(cuts))):
        grad = cut_out(grad, dim, cut)
    return grad.permute(dim_order(view, cuts)).reshape(tuple(view.sizes))


def put(grad: torch.Tensor, part: torch.Tensor, view: Geometry) -> torch.Tensor:
    """``grad`` with what ``view`` shows of it replaced by ``part``."""
    cuts = cuts_of(view)
    if cuts is None:
        index = positions(view, grad.device)
        return grad.reshape(-1).index_put((index,), part).view(grad.shape)
    parts = [grad]
    for dim, cut in reversed(list(enumerate(cuts))):
        parts.append(cut_out(parts[-1], dim, cut))
    order = dim_order(view, cuts)
    permuted = [parts[-1].shape[dim] for dim in order]
    part = part.reshape(permuted).permute([order.index(dim) for dim in range(len(order))])
    for (dim, cut), whole in zip(enumerate(cuts), reversed(parts[:-1])):
        if isinstance(cut, int):
            part = torch.select_scatter(whole, part, dim, cut)
        elif cut != (0, whole.shape[dim], 1):
            part = torch.slice_scatter(whole, part, dim, *cut)
    return part


def cut_out(tensor: torch.Tensor, dim: int, cut: int | Cut) -> torch.Tensor:
    """One index of ``dim``, or a slice of it."""
    if isinstance(cut, int):
        return tensor.select(dim, cut)
    if cut == (0, tensor.shape[dim], 1):
        return tensor
    return torch.ops.aten.slice(tensor, dim, *cut)  # type: ignore[no-any-return]


def cuts_of(view: Geometry) -> list[int | Cut] | None:
    """What ``view`` keeps of each dim of the base; None if it is not made of selects and slices."""
    starts = _starts(view)
    if starts is None:
        return None
    cuts: list[int | Cut] = list(starts)
    for size, stride in zip(view.sizes, view.strides):
        if size == 1:
            continue
        dims = [d for d, s in enumerate(view.base_strides) if 0 < s <= stride and stride % s == 0]
        free = [d for d in dims if view.base_sizes[d] > 1 and isinstance(cuts[d], int)]
        if not free:
            return None
        dim = max(free, key=view.base_strides.__getitem__)
        step = stride // view.base_strides[dim]
        stop = starts[dim] + (size - 1) * step + 1
        if size == 0 or stop > view.base_sizes[dim]:
            return None
        whole = step == 1 and stop - starts[dim] == view.base_sizes[dim]
        cuts[dim] = (starts[dim], view.base_sizes[dim] if whole else stop, step)
    return cuts


def _starts(view: Geometry) -> list[int] | None:
    """The index in each dim of the base at which the view starts; None if it is ambiguous."""
    starts = [0] * len(view.base_sizes)
    offset, extent = view.offset, None
    for dim in sorted(range(len(starts)), key=lambda d: view.base_strides[d], reverse=True):
        size, stride = view.base_sizes[dim], view.base_strides[dim]
        if size == 1:
            continue
        if size == 0 or stride == 0 or (extent is not None and size * stride > extent):
            return None
        starts[dim], offset, extent = offset // stride, offset % stride, stride
    return None if offset else starts


def dim_order(view: Geometry, cuts: Sequence[int | Cut]) -> list[int]:
    """How to permute the dims kept of the base so that they come as in the view."""
    steps = {
        view.base_strides[dim] * cut[2]: dim
        for dim, cut in enumerate(cuts)
        if not isinstance(cut, int)
    }
    wanted = [steps[stride] for size, stride in zip(view.sizes, view.strides) if size > 1]
    kept = sorted(wanted)
    return [kept.index(dim) for dim in wanted]


def positions(view: Geometry, device: torch.device) -> torch.Tensor:
    """Which element of the base, counted row by row, each element of the view is."""
    numbers = torch.arange(math.prod(view.base_sizes), device=device).view(tuple(view.base_sizes))
    extent = 1 + sum((n - 1) * s for n, s in zip(view.base_sizes, view.base_strides))
    memory = numbers.new_zeros(extent)
    memory.as_strided(view.base_sizes, view.base_strides).copy_(numbers)
    return memory.as_strided(view.sizes, view.strides, view.offset).contiguous()
