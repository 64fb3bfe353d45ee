"""One operator under one composition, by fxforms or by torch.func: right, failed or skipped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch

from opinfo_db.checks import BY_NAME
from opinfo_db.checks.contract import Case, Check, CheckFailure, OracleError, cases, run_check
from opinfo_db.checks.transforms import FXFORMS, TORCH_FUNC, Transforms
from opinfo_db.core import OpInfo, SampleInput, Tolerance
from opinfo_db.torch_ops import differentiable_ops

DTYPE = torch.float32
SAMPLES = 2
IN_DIMS = 3
COMPOSITIONS = (
    "grad",
    "vjp",
    "jvp",
    "vmap",
    "vjpvjp",
    "jvpvjp",
    "vmapvjp",
    "vmapjvp",
    "vmapvmap",
    "vmapvjpvjp",
    "vmapjvpvjp",
)
SIDES: dict[str, Transforms] = {side.name: side for side in (FXFORMS, TORCH_FUNC)}
# A batched kernel sums in another order than the loop, and second derivatives amplify that.
_TOLERANCE = Tolerance(1e-4, 1e-3)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one pair of operator and composition on one side.

    ``status`` is ``right``, ``failed`` or ``skipped``; ``reason`` is the first line of the error,
    or why nothing could be compared.
    """

    status: str
    reason: str = ""
    assertions: int = 0


def measured_ops() -> dict[str, OpInfo]:
    """The float32 operators that support autograd, by name, each with its first two samples."""
    return {entry.name: _restricted(entry) for entry in differentiable_ops(DTYPE)}


def _restricted(entry: OpInfo) -> OpInfo:
    """``entry`` with its first samples and one tolerance."""

    def sample_inputs(
        device: torch.device, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[SampleInput]:
        yield from islice(entry.sample_inputs(device, dtype, requires_grad), SAMPLES)

    return replace(entry, sample_inputs=sample_inputs, tolerances={DTYPE: _TOLERANCE})


def measure(entry: OpInfo, composition: str, side: str) -> Outcome:
    """Run one pair on each sample: right if no case fails and at least one was compared."""
    check = BY_NAME[composition]
    if missing := check.needs - entry.supports:
        return Outcome("skipped", f"torch declares no {', '.join(sorted(missing))}")
    assertions, skipped = 0, "no sample has a tensor to transform by"
    for case in _some_cases(check, entry):
        try:
            assertions += run_check(check, case, SIDES[side]).assertions
        except OracleError as error:
            skipped = first_line(error)
        except CheckFailure as failure:
            return Outcome("failed", _reason(failure), assertions)
    return Outcome("right", "", assertions) if assertions else Outcome("skipped", skipped)


def _some_cases(check: Check, entry: OpInfo) -> Iterator[Case]:
    """The first choices of ``in_dims`` of each sample: all at 0, all at -1, the first tensor."""
    made: Counter[int] = Counter()
    for case in cases(check, entry, DTYPE):
        made[case.index] += 1
        if made[case.index] <= IN_DIMS:
            yield case


def _reason(failure: CheckFailure) -> str:
    """The first line of a failure; in short if it is about values, which can be long."""
    difference = failure.difference
    if difference is None or difference.actual.shape != difference.expected.shape:
        return first_line(failure)
    return (
        f"wrong value in {difference.where}: the largest difference is {difference.amount:.3g}, "
        f"allowed {difference.limit:.3g}"
    )


def first_line(error: Exception) -> str:
    """The first line of an error, without the test id that it begins with and without addresses."""
    line = str(error).strip().partition("\n")[0].partition(": ")[2]
    return re.sub(r"0x[0-9a-f]+", "0x...", line)[:300]
