"""``vjp`` is linear in the cotangents and ``jvp`` in the tangents; zero goes to zero."""

from __future__ import annotations

from collections.abc import Callable

import torch

from opinfo_db.checks import tested
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult
from opinfo_db.checks.flat import (
    Fun,
    Tensors,
    pick,
    problem,
    random_like,
    require_derivatives,
    tensor_leaves,
)
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability

_A, _B = 2.0, -0.5


def _combined(x: Tensors, y: Tensors) -> Tensors:
    """``a x + b y`` for the two fixed numbers."""
    return tuple(_A * u + _B * v for u, v in zip(x, y, strict=True))


def _compare(
    case: Case, of: Callable[[Fun, Transforms], Fun], transforms: Transforms
) -> CheckResult:
    """Compare the linear map of a combination with the combination of the maps."""
    posed, tally = problem(case), Tally(case.entry)
    require_derivatives(posed)
    fun = posed.op
    given = pick(posed.inputs, fun.diff_in)
    if of is tested.vjp_of:
        given = pick(tensor_leaves(posed.raw(*posed.inputs)), fun.diff_out)

    def linear(new: Tensors) -> Tensors:
        return of(fun, transforms).call(*posed.inputs, *new)[fun.n_out :]

    x, y = random_like(given), random_like(given)
    tally.all_equal("map(a x + b y)", linear(_combined(x, y)), _combined(linear(x), linear(y)))
    zeros = linear(tuple(torch.zeros_like(g) for g in given))
    tally.all_equal("map(0)", zeros, tuple(torch.zeros_like(z) for z in zeros))
    return tally.result()


def run_vjp(case: Case, transforms: Transforms) -> CheckResult:
    """``vjp`` is linear."""
    return _compare(case, tested.vjp_of, transforms)


def run_jvp(case: Case, transforms: Transforms) -> CheckResult:
    """``jvp`` is linear."""
    return _compare(case, tested.jvp_of, transforms)


VJP_LINEAR = Check(
    "vjp_linear",
    "vjp is linear in the cotangents",
    run_vjp,
    frozenset({Capability.BACKWARD}),
)
JVP_LINEAR = Check(
    "jvp_linear", "jvp is linear in the tangents", run_jvp, frozenset({Capability.JVP})
)
