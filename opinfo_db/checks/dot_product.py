"""``jvp`` against ``vjp``: ``<u, J t> = <J^T u, t>`` for random ``u`` and ``t``."""

from __future__ import annotations

from opinfo_db.checks import tested
from opinfo_db.checks.compare import Tally, inner, inner_size
from opinfo_db.checks.contract import Case, Check, CheckResult
from opinfo_db.checks.flat import pick, problem, random_like, require_derivatives
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Compare the two inner products, and the values that come with them."""
    posed, tally = problem(case), Tally(case.entry)
    require_derivatives(posed)
    fun = posed.op
    tangents = random_like(pick(posed.inputs, fun.diff_in))
    forward = tested.jvp_of(fun, transforms).call(*posed.inputs, *tangents)
    outputs, pushed = forward[: fun.n_out], forward[fun.n_out :]
    cotangents = random_like(pick(outputs, fun.diff_out))
    backward = tested.vjp_of(fun, transforms).call(*posed.inputs, *cotangents)
    tally.all_equal("value", backward[: fun.n_out], outputs)
    pulled = backward[fun.n_out :]
    left = list(zip(cotangents, pushed, strict=True))
    right = list(zip(tangents, pulled, strict=True))
    size = sum(inner_size(x, y) for x, y in (*left, *right))
    tolerance = case.entry.tolerance(case.dtype)
    tally.near(
        "<u, jvp(t)> and <vjp(u), t>",
        sum(inner(x, y) for x, y in left),
        sum(inner(x, y) for x, y in right),
        tolerance.atol + tolerance.rtol * size,
    )
    return tally.result()


DOT_PRODUCT = Check(
    "dot_product",
    "jvp against vjp by the dot-product identity",
    run,
    frozenset({Capability.BACKWARD, Capability.JVP}),
)
