"""``jit`` at each place of each composition: the values of eager, from one trace.

``jit_vmapvjp`` is ``jit(vmap(vjp(f)))``, ``vmap(jit(vjp(f)))`` and ``vmap(vjp(jit(f)))``. Each is
called twice with one signature and other values, so that a number that the trace has kept shows,
and the second call may not run the function's Python again. The first values are compared with
plain autograd and a loop, the others with the same composition without ``jit``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import fxforms
from opinfo_db.checks import in_dims, oracle
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.compositions import Built, build, needed
from opinfo_db.checks.contract import Case, Check, CheckResult, InDims
from opinfo_db.checks.contract import oracle as running_oracle
from opinfo_db.checks.flat import Fun, Tensors, pick, random_like
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability, OpInfo

_SEED = 20
#: An entry has a quick test in one of so many checks: a trace takes a tenth of a second.
QUICK_SHARE = 10
#: The same for compiled code, which takes seconds.
QUICK_SHARE_COMPILED = 60


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
    varied = [laid_out_like(entry.vary(x, 1), x) for x in built.inputs[:count]]
    return (*varied, *random_like(built.inputs[count:]))


def laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` with the strides of ``like``, which are part of a signature."""
    if tensor.stride() == like.stride():
        return tensor
    value = tensor.detach()
    for dim, stride in enumerate(like.stride()):  # an expanded dim holds one number
        value = value.narrow(dim, 0, 1) if stride == 0 and like.shape[dim] else value
    strides = [stride or 1 for stride in like.stride()]
    made = torch.empty_strided(value.shape, strides, dtype=like.dtype, device=like.device)
    return made.copy_(value).expand(like.shape).requires_grad_(tensor.requires_grad)


def places(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """``kinds`` with "jit" at each place, outermost first."""
    return [(*kinds[:i], "jit", *kinds[i:]) for i in range(len(kinds) + 1)]


def compare_two_calls(tally: Tally, name: str, counted: Counted, built: Built, eager: Fun) -> None:
    """Call once and compare with the oracle, then with other values and compare with ``eager``."""
    with running_oracle("plain autograd and a loop"):
        expected = oracle.detached(lambda: built.oracle.call(*built.inputs))
    tally.all_equal(name, oracle.detached(lambda: built.tested.call(*built.inputs)), expected)
    others, runs = other_values(built), counted.runs
    with running_oracle("eager"):
        expected = oracle.detached(lambda: eager.call(*others))
    actual = oracle.detached(lambda: built.tested.call(*others))
    tally.all_equal(f"{name}, other values", actual, expected)
    tally.true(counted.runs == runs, f"{name}: the second call ran the function in Python")


def compare(case: Case, kinds: Sequence[str], transforms: Transforms, tally: Tally) -> None:
    """Check the composition ``kinds``, of which one is "jit"."""
    counted = Counted(transforms.jit, case.entry.random)
    built = build(case, kinds, [replace(transforms, jit=counted)] * len(kinds))
    without = [kind for kind in kinds if kind != "jit"]
    eager = build(case, without, [transforms] * len(without)).tested
    compare_two_calls(tally, " of ".join(kinds), counted, built, eager)


def composition(kinds: tuple[str, ...]) -> Check:
    """The check of the composition ``kinds``, outermost first, with jit at each place."""
    name = "".join(kinds)

    def run(case: Case, transforms: Transforms) -> CheckResult:
        tally = Tally(case.entry)
        for placed in places(kinds):
            compare(case, placed, transforms, tally)
        return tally.result()

    return Check(
        f"jit_{name}" if name else "jit",
        f"{name or 'the function'} with jit at each place",
        run,
        needed(kinds),
        _all_mapped if "vmap" in kinds else _not_mapped,
        applies=_first_dtype,
        quick_share=QUICK_SHARE,
    )


def run_autograd(case: Case, transforms: Transforms) -> CheckResult:
    """Plain autograd through ``jit(f)``, and twice through it where the entry supports that."""
    tally, counted = Tally(case.entry), Counted(transforms.jit, case.entry.random)
    built = build(case, ("jit",), [replace(transforms, jit=counted)])
    eager = built.problem.op
    orders = 2 if _twice(case.entry) else 1
    for order in range(1, orders + 1):
        with running_oracle("the function itself"):
            outputs = oracle.detached(lambda: eager.call(*built.inputs))  # noqa: B023
        given = random_like(pick(outputs, eager.diff_out))
        eager = oracle.vjp_of(eager)
        funs = oracle.vjp_of(built.tested), oracle.vjp_of(built.oracle)
        built = Built(built.problem, *funs, inputs=(*built.inputs, *given))
        compare_two_calls(tally, f"autograd, order {order}", counted, built, eager)
    return tally.result()


def _twice(entry: OpInfo) -> bool:
    """True if plain autograd goes twice through the operation itself."""
    waived = {waiver.check for waiver in entry.expected_failures}
    return Capability.DOUBLE_BACKWARD in entry.supports and "gradgradcheck" not in waived


def run_compiled(case: Case, transforms: Transforms) -> CheckResult:
    """``vjp`` with ``jit`` outside and inside, by compiled code."""
    tally = Tally(case.entry)
    compiled = replace(transforms, jit=lambda f: fxforms.jit(f, compile="wait"))
    for placed in places(("vjp",)):
        compare(case, placed, compiled, tally)
    return tally.result()


def _all_mapped(tensors: tuple[Tensor, ...]) -> tuple[InDims, ...]:
    """All tensors mapped at 0."""
    return in_dims.choices(tensors)[:1]


def _not_mapped(tensors: tuple[Tensor, ...]) -> tuple[None]:
    """No ``vmap`` in the composition."""
    return (None,)


def _first_dtype(entry: OpInfo, dtype: torch.dtype) -> bool:
    """A trace does not depend on the dtype in ways that the other checks would not see."""
    return dtype == entry.dtypes[0]


_BACKWARD = frozenset({Capability.BACKWARD})
_KINDS: tuple[tuple[str, ...], ...] = (
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
JIT: tuple[Check, ...] = (
    *map(composition, _KINDS),
    Check(
        "jit_autograd",
        "plain autograd through jit, once and twice",
        run_autograd,
        _BACKWARD,
        applies=_first_dtype,
        quick_share=QUICK_SHARE,
    ),
    Check(
        "jit_compiled",
        "vjp with jit at each place, by compiled code",
        run_compiled,
        _BACKWARD,
        applies=_first_dtype,
        quick_share=QUICK_SHARE_COMPILED,
    ),
)
