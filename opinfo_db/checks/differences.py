"""Finite differences of any composition, from the forward alone.

A composition is linear in each cotangent and tangent, so a random projection of what it returns
is a nested directional derivative of the forward function, whatever the order of transforms:

    <w, vjp(f)(x, c)>  =  d/dh <c, f(x + h w)>
    <w, jvp(f)(x, t)>  =  d/dh <w, f(x + h t)>
    <w, vmap(f)(xs)>   =  sum_b <w_b, f(xs_b)>

with the real inner product ``<a, b> = Re sum(conj(a) b)``. Each derivative is a central difference
in float64, so two of them take four evaluations of the forward and no derivative rule at all. One
random direction shows a wrong derivative with probability one, as in the ``check_grads`` of JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from opinfo_db.checks.compare import inner
from opinfo_db.checks.contract import InDims
from opinfo_db.checks.flat import Fun, Tensors, pick, replaced
from opinfo_db.checks.oracle import batch_size, member

#: A weight for each output; ``None`` leaves an output out.
Weights: TypeAlias = tuple[Tensor | None, ...]

# The step balances the truncation, step**2, with the rounding, eps / step**order.
_STEPS = {0: 1.0, 1: 1e-6, 2: 1e-4, 3: 1e-3}
#: The error to expect, relative to the terms of the projection, with a margin.
LIMITS = {0: 1e-9, 1: 1e-6, 2: 1e-4, 3: 1e-2}


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One transform of a composition and the function inside it; ``in_dims`` for ``vmap``."""

    kind: str
    fun: Fun
    in_dims: InDims = ()


def order(steps: Sequence[Step]) -> int:
    """How many derivatives there are in ``steps``."""
    return sum(step.kind != "vmap" for step in steps)


def projection(steps: Sequence[Step], base: Fun, args: Tensors, weights: Weights) -> float:
    """``<weights, composition(args)>`` for ``steps`` (outermost first) around ``base``."""
    with torch.no_grad():
        return _project(steps, base, args, weights, _STEPS[order(steps)])


def _project(steps: Sequence[Step], base: Fun, args: Tensors, weights: Weights, h: float) -> float:
    """As :func:`projection`, with the step ``h``."""
    if all(w is None for w in weights):
        return 0.0
    if not steps:
        outputs = base.call(*args)
        return sum(inner(w, y) for w, y in zip(weights, outputs, strict=True) if w is not None)
    step, rest = steps[0], steps[1:]
    if step.kind == "vmap":
        return _project_vmap(step, rest, base, args, weights, h)
    fun = step.fun
    inputs, given = args[: fun.n_in], args[fun.n_in :]
    kept, new = weights[: fun.n_out], weights[fun.n_out :]
    direction, inner_weights = (new, given) if step.kind == "vjp" else (given, new)
    through = _at_outputs(fun, inner_weights)

    def along(sign: int) -> float:
        return _project(rest, base, _moved(fun, inputs, direction, sign * h), through, h)

    slope = 0.0 if all(w is None for w in new) else (along(1) - along(-1)) / (2 * h)
    return _project(rest, base, inputs, kept, h) + slope


def _at_outputs(fun: Fun, values: Sequence[Tensor | None]) -> Weights:
    """``values`` as weights of the differentiable outputs of ``fun``, and of no other."""
    at = dict(zip(fun.diff_out, values, strict=True))
    return tuple(at.get(i) for i in range(fun.n_out))


def _moved(fun: Fun, inputs: Tensors, direction: Sequence[Tensor | None], h: float) -> Tensors:
    """``inputs`` moved by ``h`` along ``direction``, which has a part a differentiable input."""
    primals = pick(inputs, fun.diff_in)
    ends = [x if d is None else x + h * d for x, d in zip(primals, direction, strict=True)]
    return tuple(replaced(inputs, fun.diff_in, ends))


def _project_vmap(
    step: Step, rest: Sequence[Step], base: Fun, args: Tensors, weights: Weights, h: float
) -> float:
    """The sum over the batch."""
    total = 0.0
    for index in range(batch_size(step.in_dims, args)):
        own = tuple(member(x, d, index) for x, d in zip(args, step.in_dims, strict=True))
        own_weights = tuple(None if w is None else member(w, 0, index) for w in weights)
        total += _project(rest, base, own, own_weights, h)
    return total
