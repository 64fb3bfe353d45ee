"""Cotangents with a batch, as ``torch.autograd.grad(is_grads_batched=True)`` gives them.

torch runs the pass under its older vmap, whose tensors no level of functorch knows. They are made
into those of `vmap` here, and back. This is the one adapter of that older vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms.errors import UnsupportedError
from fxforms.transforms import vmap

Gradients = list[torch.Tensor | None]
_KEY: Any = torch._C._parse_dispatch_key("Batched")


def has_batch(tensor: torch.Tensor | None) -> bool:
    """True if ``tensor`` is one of the older vmap."""
    return tensor is not None and torch._C._dispatch_keys(tensor).has(_KEY)


def each(
    run: Callable[[Sequence[torch.Tensor]], Gradients], cotangents: Sequence[torch.Tensor]
) -> Gradients:
    """``run`` of each sample of ``cotangents``, in one call for all."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    # One without a batch gets one of size 1.
    given = [torch._remove_batch_dim(x, level, 1, 0) for x in cotangents]
    if any(map(has_batch, given)):
        raise UnsupportedError(
            "torch.autograd.grad(is_grads_batched=True) inside another one reached a remote "
            "function. Use fxforms.jacrev, which nests."
        )
    sizes = {x.shape[0] for x in given} - {1} or {1}
    in_dims = tuple([0 if {x.shape[0]} == sizes else None for x in given])
    given = [x if dim == 0 else x.squeeze(0) for x, dim in zip(given, in_dims)]
    there: list[bool] = []

    def gradients(*samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = run(samples)
        there[:] = [x is not None for x in found]
        return tuple([x for x in found if x is not None])

    found: Any = iter(vmap(gradients, in_dims)(*given))
    return [torch._add_batch_dim(next(found), 0, level) if is_there else None for is_there in there]
