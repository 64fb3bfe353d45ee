"""The ways in which an entry can be used, for checks of what a use leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from opinfo_db.checks import in_dims, oracle, tested
from opinfo_db.checks.flat import Fun, Problem, Tensors, pick, random_like
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability

#: Runs the function once on the inputs, in one way.
Use: TypeAlias = Callable[[Fun, Tensors], Any]


def _forward(fun: Fun, inputs: Tensors) -> Any:
    """Call it."""
    with torch.no_grad():
        return fun.call(*inputs)


def _with_cotangents(outer: Callable[[Fun], Fun], fun: Fun, inputs: Tensors) -> Any:
    """Pull back random cotangents."""
    with torch.no_grad():
        outputs = fun.call(*inputs)
    return outer(fun).call(*inputs, *random_like(pick(outputs, fun.diff_out)))


def uses(posed: Problem, transforms: Transforms) -> dict[str, Use]:
    """Each use that the entry supports, by name; all on the unbatched inputs of ``posed``."""
    found: dict[str, Use] = {"forward": _forward}
    supports, fun = posed.entry.supports, posed.plain
    if fun.diff_in and fun.diff_out:
        if Capability.BACKWARD in supports:
            found["backward"] = lambda f, x: oracle.detached(
                lambda: _with_cotangents(oracle.vjp_of, f, x)
            )
            found["vjp"] = lambda f, x: _with_cotangents(
                lambda g: tested.vjp_of(g, transforms), f, x
            )
        if Capability.JVP in supports:
            found["jvp"] = lambda f, x: tested.jvp_of(f, transforms).call(
                *x, *random_like(pick(x, f.diff_in))
            )
    if Capability.VMAP in supports and posed.inputs:
        found["vmap"] = lambda f, x: _map(posed, transforms, f, x)
    return found


def _map(posed: Problem, transforms: Transforms, fun: Fun, inputs: Tensors) -> Any:
    """Map it over a batch of two."""
    dims = (0,) * len(inputs)
    randomness = "same" if posed.entry.random else "error"
    batched: list[Tensor] = [in_dims.batch(posed.entry, x, 0, 2) for x in inputs]
    return tested.vmap_of(fun, transforms, dims, randomness).call(*batched)
