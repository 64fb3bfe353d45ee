"""What a derived rule costs, and the form `forward(ctx, ...)`: fxforms on both sides.

The peer is the same Function with `setup_context` and every rule written by hand.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fxforms
from benchmarks.eager import transforms
from benchmarks.eager.custom_functions import Rules, all_rules, combined_form, summed
from benchmarks.eager.sides import TensorFunction, tiny
from benchmarks.timing import Side
from benchmarks.workload import Workload

BY_HAND = "by hand"
ByHand = all_rules(fxforms.Function)


class DerivedVmap(Rules, fxforms.Function):
    """The Function without a vmap rule."""


class DerivedJvp(fxforms.Function):
    """The Function without a jvp rule."""

    forward = staticmethod(Rules.forward)
    backward = staticmethod(Rules.backward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return DerivedJvp.apply(x), in_dims[0]


class Case(NamedTuple):
    """A Function, the transforms it is measured under, and its bounds on few and many elements."""

    label: str
    function: Any
    names: tuple[str, ...]
    bound: float
    large_bound: float


CASES = (
    Case("derived vmap", DerivedVmap, ("vmap", "vmap(grad)", "grad(vmap)", "vmap(jvp)"), 1.3, 1.02),
    Case("derived jvp", DerivedJvp, ("jvp", "vmap(jvp)"), 2.0, 2.0),
    Case(
        "combined form",
        combined_form(fxforms.Function),
        ("grad", "jvp", "vmap", "vmap(grad)", "grad(vmap)", "grad(grad)"),
        1.2,
        1.2,
    ),
)


def grad_vmap(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The gradient of the sum of f over the rows."""
    mapped = api.vmap(f)
    return transforms.grad(api, lambda y: mapped(y).sum(), x)


def vmap_jvp(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """f of every row and its derivative along ones."""
    tangent = torch.ones_like(x[0])
    return transforms.vmap(api, lambda y: api.jvp(f, (y,), (tangent,)), x)


BUILDERS: dict[str, Callable[[Any, TensorFunction, Tensor], Side]] = {
    **transforms.BUILDERS,
    "grad(vmap)": grad_vmap,
    "vmap(jvp)": vmap_jvp,
}


def expected(name: str, x: Tensor) -> Any:
    """What each workload gives, in closed form."""
    value, first = (x.sin() * x).sum(-1), transforms.nth_derivative(x, 1)
    mapped = {"grad(vmap)": first, "vmap(jvp)": (value, first.sum(-1))}
    return mapped[name] if name in mapped else transforms.expected(name, x)


def workload(case: Case, name: str, large: bool) -> Workload:
    """A transform on the Function of a case, and on the one with every rule by hand."""
    build = BUILDERS[name]
    x = tiny(1_000, 1_000) if large else tiny(3, 5) if "vmap" in name else tiny(5)
    sides = {
        case.label: build(fxforms, summed(case.function), x),
        BY_HAND: build(fxforms, summed(ByHand), x),
    }
    if large:
        bounds = {BY_HAND: case.large_bound}
        return Workload(f"1,000,000 elements, {case.label}", name, sides, bounds)
    return Workload(case.label, name, sides, {BY_HAND: case.bound}, expected(name, x))


def workloads() -> list[Workload]:
    """Each case on few and on many elements."""
    return [
        workload(case, name, large)
        for large in (False, True)
        for case in CASES
        for name in case.names
    ]
