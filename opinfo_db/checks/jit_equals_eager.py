"""``jit`` at each place of each composition: the values of eager, from one trace.

``jit_vmapvjp`` is ``jit(vmap(vjp(f)))``, ``vmap(jit(vjp(f)))`` and ``vmap(vjp(jit(f)))``. Each is
called twice with one signature and other values, so that a number that the trace has kept shows,
and the second call may not run the function's Python again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from opinfo_db.checks import in_dims, oracle
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.compositions import Built, build, needed
from opinfo_db.checks.contract import Case, Check, CheckResult, InDims
from opinfo_db.checks.contract import oracle as running_oracle
from opinfo_db.checks.flat import Tensors, random_like
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import OpInfo

_SEED = 20


class Counted:
    """``jit`` of a function, which counts how often Python runs it; seeds before a random one."""

    def __init__(self, jit: Callable[..., Any], random: bool) -> None:
        self.jit, self.random = jit, random
        self.runs = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` jitted."""

        def counted(*tensors: Tensor) -> Any:
            self.runs += 1
            return function(*tensors)

        jitted = self.jit(counted)

        def call(*tensors: Tensor) -> Any:
            if self.random:
                torch.manual_seed(_SEED)
            return jitted(*tensors)

        return call


def other_values(built: Built) -> Tensors:
    """Inputs of the same signature with other numbers in them."""
    entry, count = built.problem.entry, len(built.problem.inputs)
    return (*[entry.vary(x, 1) for x in built.inputs[:count]], *random_like(built.inputs[count:]))


def places(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """``kinds`` with "jit" at each place, outermost first."""
    return [(*kinds[:i], "jit", *kinds[i:]) for i in range(len(kinds) + 1)]


def compare(case: Case, kinds: Sequence[str], transforms: Transforms, tally: Tally) -> None:
    """Call one composition twice, and compare with the oracle and with eager."""
    counted = Counted(transforms.jit, case.entry.random)
    staged = replace(transforms, jit=counted)
    built = build(case, kinds, [staged] * len(kinds))
    name = " of ".join(kinds)
    with running_oracle("plain autograd and a loop"):
        expected = oracle.detached(lambda: built.oracle.call(*built.inputs))
    tally.all_equal(name, oracle.detached(lambda: built.tested.call(*built.inputs)), expected)
    others, runs = other_values(built), counted.runs
    without = [kind for kind in kinds if kind != "jit"]
    with running_oracle("eager"):
        eager = build(case, without, [transforms] * len(without)).tested
        expected = oracle.detached(lambda: eager.call(*others))
    actual = oracle.detached(lambda: built.tested.call(*others))
    tally.all_equal(f"{name}, other values", actual, expected)
    tally.true(counted.runs == runs, f"{name}: the second call ran the function in Python")


def check(kinds: tuple[str, ...]) -> Check:
    """The check of the composition ``kinds``, outermost first, with jit at each place."""
    name = "".join(kinds)

    def run(case: Case, transforms: Transforms) -> CheckResult:
        tally = Tally(case.entry)
        for placed in places(kinds):
            compare(case, placed, transforms, tally)
        return tally.result()

    description = f"{name or 'the function'} with jit at each place"
    variants = _all_mapped if "vmap" in kinds else _not_mapped
    return Check(
        f"jit_{name}" if name else "jit",
        description,
        run,
        needed(kinds),
        variants,
        applies=_first_dtype,
    )


def _all_mapped(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """All tensors mapped at 0."""
    return in_dims.choices(tensors)[:1]


def _not_mapped(tensors: tuple[Tensor, ...]) -> tuple[None]:
    """No ``vmap`` in the composition."""
    return (None,)


def _first_dtype(entry: OpInfo, dtype: torch.dtype) -> bool:
    """A trace does not depend on the dtype in ways that the other checks would not see."""
    return dtype == entry.dtypes[0]


KINDS: tuple[tuple[str, ...], ...] = (
    (),
    ("vjp",),
    ("jvp",),
    ("vmap",),
    ("vjp", "vjp"),
    ("jvp", "vjp"),
    ("vjp", "jvp"),
    ("jvp", "jvp"),
    ("vjp", "vmap"),
    ("jvp", "vmap"),
    ("vmap", "vjp"),
    ("vmap", "jvp"),
    ("vmap", "vmap"),
    ("vmap", "vjp", "vjp"),
    ("vmap", "jvp", "vjp"),
    ("vjp", "vmap", "vmap"),
)
JIT: tuple[Check, ...] = tuple(map(check, KINDS))
