"""Compares what a composition returned with finite differences, in random directions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from opinfo_db.checks import differences
from opinfo_db.checks.compare import Tally, inner, inner_size
from opinfo_db.checks.contract import oracle
from opinfo_db.checks.differences import Step
from opinfo_db.checks.flat import Problem, Tensors, pick, random_like
from opinfo_db.checks.oracle import DOUBLE, WIDER, widened
from opinfo_db.core import OpInfo

_DIRECTIONS = 2


def can_difference(entry: OpInfo, primals: Sequence[Tensor]) -> bool:
    """True if derivatives at ``primals`` are to be compared with finite differences.

    They are in double precision. In another dtype they are, on widened inputs, only where no
    other oracle knows the derivative: no reference, and no tests of the entry in double precision.
    """
    if not entry.finite_differences:
        return False
    if all(x.dtype in DOUBLE for x in primals):
        return True
    wide = {WIDER.get(x.dtype, x.dtype) for x in primals}
    return entry.reference is None and wide.isdisjoint(entry.dtypes)


def compare_projections(
    tally: Tally, posed: Problem, steps: Sequence[Step], inputs: Tensors, actual: Tensors
) -> None:
    """Compare the outputs that the outermost derivative of ``steps`` added.

    Nothing is compared if there is no derivative, or finite differences cannot see it.
    """
    order = differences.order(steps)
    if order and can_difference(posed.entry, pick(posed.inputs, posed.op.diff_in)):
        for _ in range(_DIRECTIONS):
            _compare_one(tally, posed, steps, inputs, actual)


def _compare_one(
    tally: Tally, posed: Problem, steps: Sequence[Step], inputs: Tensors, actual: Tensors
) -> None:
    """Compare in one direction."""
    outermost = next(step for step in steps if step.kind != "vmap")
    newest = range(outermost.fun.n_out, len(actual))
    weights = random_like(pick(actual, newest))
    # The op itself, not the reference: this is the one oracle that no derivative rule enters.
    with oracle("finite differences"):
        expected = differences.projection(
            steps,
            posed.op,
            tuple(map(widened, inputs)),
            (*(None for _ in range(newest.start)), *weights),
        )
    pairs = list(zip(weights, pick(actual, newest), strict=True))
    size = 1 + sum(inner_size(w, y) for w, y in pairs)
    rounding = max(posed.entry.tolerance(y.dtype).rtol for _, y in pairs)
    limit = (differences.LIMITS[differences.order(steps)] + rounding) * size
    projected = sum(inner(w, y) for w, y in pairs)
    tally.near("by finite differences", projected, expected, limit)
