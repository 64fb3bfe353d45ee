"""``vmap`` with ``out_dims=-1``: the batch comes last in each output."""

from __future__ import annotations

from opinfo_db.checks import in_dims, oracle, tested
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult
from opinfo_db.checks.contract import oracle as running_oracle
from opinfo_db.checks.flat import problem
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability

_SIZE = 3


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Compare with a loop whose results are stacked along the last dim."""
    posed, tally, dims = problem(case), Tally(case.entry), case.in_dims
    assert dims is not None
    pairs = zip(posed.inputs, dims, strict=True)
    batched = tuple(in_dims.batch(case.entry, x, d, _SIZE) for x, d in pairs)
    with running_oracle("a loop"):
        expected = oracle.vmap_of(posed.plain, dims, -1).call(*batched)
    randomness = "same" if case.entry.random else "error"
    mapped = tested.vmap_of(posed.op, transforms, dims, randomness, -1)
    tally.all_equal("vmap(out_dims=-1)", mapped.call(*batched), expected)
    return tally.result()


OUT_DIMS = Check(
    "out_dims",
    "a batch that comes out last, against a loop",
    run,
    frozenset({Capability.VMAP}),
    in_dims.few_choices,
)
