"""The value: against the reference, and the same however the inputs lie in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxforms._tree import flatten
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult, oracle
from opinfo_db.checks.flat import Problem, Tensors, problem, tensor_leaves, tracked
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import is_inexact


def compare_trees(tally: Tally, where: str, actual: Any, expected: Any) -> None:
    """The structures are equal, tensors compare by value, and other leaves with ``==``."""
    (got, got_spec), (wanted, wanted_spec) = flatten(actual), flatten(expected)
    tally.true(got_spec == wanted_spec, f"{where}: structure {got_spec}, expected {wanted_spec}")
    for index, (a, e) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(a, Tensor) and isinstance(e, Tensor):
            tally.equal(f"{where}[{index}]", a, e)
        else:
            tally.true(type(a) is type(e) and a == e, f"{where}[{index}]: {a!r}, expected {e!r}")


def contiguous(tensor: Tensor) -> Tensor:
    """A contiguous copy."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def spread(tensor: Tensor) -> Tensor:
    """A copy with twice the strides; what lies between its elements is NaN, or zero."""
    gap = torch.full_like(tensor, torch.nan if is_inexact(tensor.dtype) else 0)
    return torch.stack((tensor, gap), -1).select(-1, 0)


def _expected(posed: Problem) -> Any:
    """What ``posed`` should return: from the reference, else from the op on contiguous inputs."""
    inputs = [contiguous(x) for x in posed.inputs]
    with torch.no_grad():
        if posed.entry.reference is None:
            return posed.raw(*inputs)
        with oracle("the reference"):
            return posed.raw_plain(*inputs)


def _layouts(posed: Problem) -> dict[str, Tensors]:
    """The inputs as given, contiguous and spread out."""
    return {
        "forward": posed.inputs,
        "forward on contiguous inputs": tuple(map(contiguous, posed.inputs)),
        "forward on non-contiguous inputs": tuple(map(spread, posed.inputs)),
    }


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Compare the value in each layout and under autograd, and see that no input changed."""
    posed, tally = problem(case), Tally(case.entry)
    expected = _expected(posed)
    for where, inputs in _layouts(posed).items():
        before = [x.clone() for x in inputs]
        with torch.no_grad():
            compare_trees(tally, where, posed.raw(*inputs), expected)
        tally.all_equal(f"inputs after {where}", inputs, before)
    recorded = posed.raw(*tracked(posed.inputs, posed.plain.diff_in))
    compare_trees(tally, "forward under autograd", recorded, expected)
    seen = tuple(i for i, y in enumerate(tensor_leaves(recorded)) if y.requires_grad)
    tally.true(
        seen == posed.plain.diff_out,
        f"outputs {list(seen)} require grad, expected {list(posed.plain.diff_out)}",
    )
    return tally.result()


FORWARD = Check("forward", "values against the reference, in each memory layout", run)
