"""No level of a transform is left behind, also when the function raises."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.autograd import forward_ad

from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult
from opinfo_db.checks.flat import Fun, Tensors, problem
from opinfo_db.checks.transforms import Transforms
from opinfo_db.checks.uses import Use, uses

_LEVEL = re.compile(r"BatchedTensor\(lvl=(\d+)")


class _Stop(Exception):
    """Raised inside the function under test; no operation raises it."""


def depth() -> int:
    """How many transforms are active: a new ``torch.func.vmap`` shows the number of its level."""
    seen: list[str] = []

    def look(x: Tensor) -> Tensor:
        seen.append(repr(x))
        return x

    torch.func.vmap(look)(torch.zeros(1))
    match = _LEVEL.search(seen[0])
    assert match is not None, f"no level in the repr of a batched tensor: {seen[0]}"
    return int(match[1]) - 1


def state() -> dict[str, object]:
    """What a transform has to restore."""
    return {
        "active transforms": depth(),
        "forward-mode level": _forward_level(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
    }


def _forward_level() -> int:
    """The number that a new forward-mode level would get, or -1 where one is open already."""
    try:
        level: int = forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch refuses to nest them
        return -1
    forward_ad.exit_dual_level(level=level)  # type: ignore[no-untyped-call]
    return level


def _raising(fun: Fun) -> Fun:
    """``fun`` that raises after its work, the first time."""

    def call(*tensors: Tensor) -> Tensors:
        fun.call(*tensors)
        raise _Stop

    return Fun(call, fun.n_in, fun.n_out, fun.diff_in, fun.diff_out)


def _raises(use: Use, fun: Fun, inputs: Tensors) -> bool:
    """True if the exception of the function comes out as it is."""
    try:
        use(_raising(fun), inputs)
    except _Stop:
        return True
    return False


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Compare the state before and after each use, and after one that raises."""
    before = state()
    posed, tally = problem(case), Tally(case.entry)
    for name, use in uses(posed, transforms).items():
        use(posed.op, posed.inputs)
        _same(tally, f"after {name}", before)
        tally.true(_raises(use, posed.op, posed.inputs), f"{name} swallows an exception")
        _same(tally, f"after an exception in {name}", before)
    return tally.result()


def _same(tally: Tally, where: str, before: dict[str, object]) -> None:
    """The state is still what it was."""
    after = state()
    tally.true(after == before, f"{where} the state is {after}, before it was {before}")


LEVELS = Check("levels", "no level is left behind, also after an exception", run)
