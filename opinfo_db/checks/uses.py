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


def uses(posed: Problem, transforms: Transforms) -> dict[str, Use]:
    """Each use that the entry supports, by name; all on the unbatched inputs of ``posed``."""
    found: dict[str, Use] = {"forward": _forward}
    supports, fun = posed.entry.supports, posed.plain
    if fun.diff_in and fun.diff_out:
        # Made here, not in the use: a function that raises must raise inside the transform.
        outputs = pick(_forward(posed.op, posed.inputs), fun.diff_out)
        given = pick(posed.inputs, fun.diff_in)
        if Capability.BACKWARD in supports:
            found["backward"] = lambda f, x: oracle.vjp_of(f).call(*x, *random_like(outputs))
            found["vjp"] = lambda f, x: tested.vjp_of(f, transforms).call(*x, *random_like(outputs))
        if Capability.JVP in supports:
            found["jvp"] = lambda f, x: tested.jvp_of(f, transforms).call(*x, *random_like(given))
    if Capability.VMAP in supports and posed.inputs:
        found["vmap"] = lambda f, x: _map(posed, transforms, f, x)
    return found


def _map(posed: Problem, transforms: Transforms, fun: Fun, inputs: Tensors) -> Any:
    """Map it over a batch of two."""
    dims = (0,) * len(inputs)
    randomness = "same" if posed.entry.random else "error"
    batched: list[Tensor] = [in_dims.batch(posed.entry, x, 0, 2) for x in inputs]
    return tested.vmap_of(fun, transforms, dims, randomness).call(*batched)
