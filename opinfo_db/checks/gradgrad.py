"""Plain autograd on the operation itself, once and twice: no transform is involved."""

from __future__ import annotations

import torch
from torch import Tensor

from opinfo_db.checks import oracle as plain
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult, oracle
from opinfo_db.checks.flat import (
    Fun,
    Problem,
    Tensors,
    pick,
    problem,
    random_like,
    require_derivatives,
)
from opinfo_db.checks.forward import contiguous
from opinfo_db.checks.oracle import DOUBLE
from opinfo_db.checks.tested import split_outputs
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability, OpInfo


def has_oracle(entry: OpInfo, dtype: torch.dtype) -> bool:
    """True if there is a reference, or finite differences see enough digits."""
    return entry.reference is not None or (entry.finite_differences and dtype in DOUBLE)


def _pullbacks(posed: Problem, times: int) -> tuple[Fun, Fun, Tensors]:
    """The ``times``-fold pullback of the op and of the reference, and inputs for it."""
    op, reference, inputs = posed.op, posed.plain, posed.inputs
    for _ in range(times):
        with oracle("the reference"):
            outputs = plain.detached(lambda f=reference, x=inputs: f.call(*x))  # type: ignore[misc]
        inputs = (*inputs, *random_like(pick(outputs, reference.diff_out)))
        op, reference = plain.vjp_of(op), plain.vjp_of(reference)
    return op, reference, inputs


def _run(case: Case, times: int) -> CheckResult:
    """Compare the ``times``-fold backward with the reference and with finite differences."""
    posed, tally = problem(case), Tally(case.entry)
    require_derivatives(posed)
    if case.entry.reference is not None:
        op, reference, inputs = _pullbacks(posed, times)
        with oracle("plain autograd of the reference"):
            expected = plain.detached(lambda: reference.call(*inputs))
        actual = plain.detached(lambda: op.call(*inputs))
        tally.all_equal(f"{times}-fold backward", actual, expected)
    primals = [contiguous(x) for x in pick(posed.inputs, posed.op.diff_in)]
    if case.entry.finite_differences and all(x.dtype in DOUBLE for x in primals):
        _torch_check(tally, posed, primals, times)
    return tally.result()


def _torch_check(tally: Tally, posed: Problem, primals: list[Tensor], times: int) -> None:
    """torch's own ``gradcheck`` or ``gradgradcheck``, which raises with what differs."""
    split = split_outputs(posed.op, posed.inputs)
    variables = [x.requires_grad_() for x in primals]
    check = torch.autograd.gradcheck if times == 1 else torch.autograd.gradgradcheck
    passed = check(lambda *xs: split(*xs)[0], variables, fast_mode=True)
    tally.true(passed, f"{check.__name__} returned {passed}")


def run_once(case: Case, transforms: Transforms) -> CheckResult:
    """Compare the backward."""
    return _run(case, 1)


def run_twice(case: Case, transforms: Transforms) -> CheckResult:
    """Compare the backward of the backward."""
    return _run(case, 2)


_ONCE = frozenset({Capability.BACKWARD})

GRADCHECK = Check("gradcheck", "plain autograd, no transform", run_once, _ONCE, applies=has_oracle)
GRADGRADCHECK = Check(
    "gradgradcheck",
    "plain autograd twice, no transform",
    run_twice,
    _ONCE | {Capability.DOUBLE_BACKWARD},
    applies=has_oracle,
)
