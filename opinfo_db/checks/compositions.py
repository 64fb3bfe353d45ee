"""``vjp``, ``jvp``, ``vmap`` and their compositions, each against plain autograd, a loop and
finite differences.

A name reads from the outside in: ``vmapvjp`` is ``vmap(vjp(f))``. One engine builds each
composition twice, with the transforms under test and with the oracles, and compares all they
return; in double precision it also compares random projections with finite differences of the
forward alone, which see a derivative that is wrong in the same way on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opinfo_db.checks import in_dims, oracle, tested
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckResult, InDims
from opinfo_db.checks.contract import oracle as running_oracle
from opinfo_db.checks.differences import Step
from opinfo_db.checks.flat import (
    Fun,
    Problem,
    Tensors,
    pick,
    problem,
    random_like,
    require_derivatives,
)
from opinfo_db.checks.projections import compare_projections
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability

#: Batch sizes from the innermost ``vmap`` outwards; they differ, so that mixed-up dims show.
_SIZES = (3, 2)
_PAIRS = {
    ("vjp",): Capability.BACKWARD,
    ("jvp",): Capability.JVP,
    ("vjp", "vjp"): Capability.DOUBLE_BACKWARD,
    ("jvp", "jvp"): Capability.DOUBLE_JVP,
    ("jvp", "vjp"): Capability.FORWARD_OVER_REVERSE,
    ("vjp", "jvp"): Capability.REVERSE_OVER_FORWARD,
}


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A composition around one problem: as tested, as the oracle has it, its steps and inputs."""

    problem: Problem
    tested: Fun
    oracle: Fun
    steps: tuple[Step, ...] = ()
    inputs: Tensors = ()


def needed(kinds: Sequence[str]) -> frozenset[Capability]:
    """What an entry must support for the composition ``kinds`` (outermost first)."""
    derivatives = tuple(kind for kind in kinds if kind not in ("vmap", "jit"))
    needs = {_PAIRS[derivatives[i:]] for i in range(len(derivatives))}
    return frozenset(needs | ({Capability.VMAP} if "vmap" in kinds else set()))


def build(case: Case, kinds: Sequence[str], transforms: Sequence[Transforms]) -> Built:
    """The composition ``kinds`` of the case's op, each with its own transforms."""
    posed = problem(case)
    if set(kinds) - {"vmap", "jit"}:
        require_derivatives(posed)
    built = Built(posed, posed.op, posed.plain, inputs=posed.inputs)
    sizes = iter(_SIZES)
    dims = case.in_dims
    for kind, own in zip(reversed(kinds), reversed(transforms), strict=True):
        if kind == "vmap":
            assert dims is not None
            built = _with_vmap(built, own, dims, next(sizes))
            dims = in_dims.outer_choice(dims)
        elif kind == "jit":
            built = replace(built, tested=tested.jit_of(built.tested, own))
        else:
            built = _with_derivative(built, kind, own)
    return built


def _with_derivative(built: Built, kind: str, transforms: Transforms) -> Built:
    """``built`` with a ``vjp`` or ``jvp`` around it, and random cotangents or tangents."""
    fun = built.oracle
    if kind == "vjp":
        with running_oracle("the function inside vjp"):
            outputs = oracle.detached(lambda: fun.call(*built.inputs))
        given = random_like(pick(outputs, fun.diff_out))
        inside = (tested.vjp_of(built.tested, transforms), oracle.vjp_of(fun))
    else:
        given = random_like(pick(built.inputs, fun.diff_in))
        inside = (tested.jvp_of(built.tested, transforms), oracle.jvp_of(fun, _twice(built)))
    steps = (Step(kind, fun), *built.steps)
    return Built(built.problem, *inside, steps, (*built.inputs, *given))


def _twice(built: Built) -> bool:
    """True if plain autograd can go twice through what the oracle runs."""
    entry = built.problem.entry
    return entry.reference is not None or Capability.DOUBLE_BACKWARD in entry.supports


def _with_vmap(built: Built, transforms: Transforms, dims: InDims, size: int) -> Built:
    """``built`` with a ``vmap`` around it; cotangents and tangents are batched at 0."""
    entry = built.problem.entry
    leaves, given = built.inputs[: len(dims)], built.inputs[len(dims) :]
    batched = [in_dims.batch(entry, x, d, size) for x, d in zip(leaves, dims, strict=True)]
    fresh = random_like([g.expand(size, *g.shape) for g in given])
    full = (*dims, *(0 for _ in given))
    randomness = "same" if entry.random else "error"
    return Built(
        built.problem,
        tested.vmap_of(built.tested, transforms, full, randomness),
        oracle.vmap_of(built.oracle, full),
        (Step("vmap", built.oracle, full), *built.steps),
        (*batched, *fresh),
    )


def compare(built: Built, where: str) -> CheckResult:
    """Run a composition and compare all it returns with the oracles."""
    tally = Tally(built.problem.entry)
    with running_oracle("plain autograd and a loop"):
        expected = oracle.detached(lambda: built.oracle.call(*built.inputs))
    actual = oracle.detached(lambda: built.tested.call(*built.inputs))
    tally.all_equal(where, actual, expected)
    compare_projections(tally, built.problem, built.steps, built.inputs, actual)
    return tally.result()


def composition(kinds: tuple[str, ...], description: str) -> Check:
    """The check of one composition, ``kinds`` from the outside in."""
    name = "".join(kinds)

    def run(case: Case, transforms: Transforms) -> CheckResult:
        return compare(build(case, kinds, [transforms] * len(kinds)), name)

    check = Check(name, description, run, needed(kinds))
    if kinds == ("vmap",):
        return replace(check, variants=in_dims.choices)
    if "vmap" not in kinds:
        return check
    innermost = kinds[-1] == "vmap"
    few = in_dims.few_choices if innermost else in_dims.few_choices_or_none
    return replace(check, variants=few)


VJP = composition(("vjp",), "gradients against autograd and finite differences")
JVP = composition(("jvp",), "tangents against autograd and finite differences")
VMAP = composition(("vmap",), "a batch against a loop, for each choice of in_dims")
VJP_VJP = composition(("vjp", "vjp"), "second derivative, reverse over reverse")
JVP_VJP = composition(("jvp", "vjp"), "second derivative, forward over reverse")
VJP_JVP = composition(("vjp", "jvp"), "second derivative, reverse over forward")
JVP_JVP = composition(("jvp", "jvp"), "second derivative, forward over forward")
VJP_VMAP = composition(("vjp", "vmap"), "gradients of a batch")
JVP_VMAP = composition(("jvp", "vmap"), "tangents of a batch")
VMAP_VJP = composition(("vmap", "vjp"), "a batch of gradients")
VMAP_JVP = composition(("vmap", "jvp"), "a batch of tangents")
VMAP_VMAP = composition(("vmap", "vmap"), "a batch of batches")
VMAP_VJP_VJP = composition(("vmap", "vjp", "vjp"), "a batch of second derivatives")
VMAP_JVP_VJP = composition(("vmap", "jvp", "vjp"), "a batch of Hessian products")
VJP_VMAP_VMAP = composition(("vjp", "vmap", "vmap"), "gradients of a batch of batches")

COMPOSITIONS: tuple[Check, ...] = (
    VJP,
    JVP,
    VMAP,
    VJP_VJP,
    JVP_VJP,
    VJP_JVP,
    JVP_JVP,
    VJP_VMAP,
    JVP_VMAP,
    VMAP_VJP,
    VMAP_JVP,
    VMAP_VMAP,
    VMAP_VJP_VJP,
    VMAP_JVP_VJP,
    VJP_VMAP_VMAP,
)
