"""The one adapter over the C++ guards of Dynamo: is a call still of a known signature?

One call into C++ compares any number of tensors (type, dtype, shape, strides, device, whether they
require grad, and which dispatch keys are active, so that a level or a mode makes it fail) and one
compares the global state (grad mode, autocast, default dtype, deterministic algorithms).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo import guards as _guards


def tensor_guard(
    tensors: Sequence[torch.Tensor], sizes: Sequence[Sequence[int | None]] | None = None
) -> Callable[..., bool]:
    """A check that the tensors of a call are like ``tensors``, which it takes one by one.

    ``sizes`` has None for a dim of which any size will do; its strides are then free as well.
    """
    fixed: Any = [list(x.shape) for x in tensors] if sizes is None else list(map(list, sizes))
    strides: Any = [
        [None] * x.dim() if None in dims else list(x.stride()) for x, dims in zip(tensors, fixed)
    ]
    made: Any = _guards.TensorGuards(
        *tensors, dynamic_dims_sizes=fixed, dynamic_dims_strides=strides
    )
    check: Callable[..., bool] = made.check
    return check


def state_guard() -> Callable[[], bool]:
    """A check that the global state is what it is now."""
    made: Any = _guards.GlobalStateGuard()
    check: Callable[[], bool] = made.check
    return check
