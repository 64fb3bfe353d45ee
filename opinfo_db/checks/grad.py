"""``grad`` of a scalar, for each argument and for all, with auxiliary outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult, oracle
from opinfo_db.checks.differences import Step
from opinfo_db.checks.flat import (
    Fun,
    Problem,
    Tensors,
    pick,
    problem,
    random_like,
    require_derivatives,
    tracked,
)
from opinfo_db.checks.oracle import detached, pullback
from opinfo_db.checks.projections import compare_projections
from opinfo_db.checks.tested import split_outputs
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability


def scalar_of(fun: Fun, inputs: Tensors, weights: Tensors) -> Callable[..., tuple[Tensor, Tensors]]:
    """The weighted sum of the outputs of ``fun``, a real scalar, and its other outputs."""
    split = split_outputs(fun, inputs)

    def scalar(*primals: Tensor) -> tuple[Tensor, Tensors]:
        outputs, others = split(*primals)
        terms = [w.conj() * y for w, y in zip(weights, outputs, strict=True)]
        reals = [(t.real if t.is_complex() else t).sum() for t in terms]
        return torch.stack(reals).sum(), others

    return scalar


def _autograd(posed: Problem, weights: Tensors) -> tuple[Tensors, Tensors]:
    """The gradients of the weighted sum by plain autograd, and the other outputs."""
    fun = posed.plain
    variables = tuple(tracked(pick(posed.inputs, fun.diff_in), range(len(fun.diff_in))))
    value, others = scalar_of(fun, posed.inputs, weights)(*variables)
    return pullback([value], variables, [torch.ones_like(value)]), others


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Compare with autograd for each choice of ``argnums``, and with finite differences."""
    posed, tally = problem(case), Tally(case.entry)
    require_derivatives(posed)
    fun = posed.op
    with oracle("the function itself"):
        outputs = detached(lambda: posed.plain.call(*posed.inputs))
    weights = random_like(pick(outputs, fun.diff_out))
    with oracle("plain autograd"):
        expected, expected_aux = _autograd(posed, weights)
    scalar, primals = scalar_of(fun, posed.inputs, weights), pick(posed.inputs, fun.diff_in)
    everything = tuple(range(len(primals)))
    grads, aux = transforms.grad(scalar, argnums=everything, has_aux=True)(*primals)
    tally.all_equal("grad", grads, expected)
    tally.all_equal("aux", aux, expected_aux)
    for argnum in everything:
        one, _ = transforms.grad(scalar, argnums=argnum, has_aux=True)(*primals)
        tally.equal(f"grad(argnums={argnum})", one, expected[argnum])
    steps, given = [Step("vjp", posed.plain)], (*posed.inputs, *weights)
    compare_projections(tally, posed, steps, given, (*outputs, *grads))
    return tally.result()


GRAD = Check(
    "grad",
    "gradients of a scalar for each argnums, with aux",
    run,
    frozenset({Capability.BACKWARD}),
)
