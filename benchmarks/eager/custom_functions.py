"""The transforms on a custom Function, the same body on fxforms.Function and torch's own.

One class has every rule written by hand, one has its vmap rule generated.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import fxforms
from benchmarks.eager import transforms
from benchmarks.eager.sides import FXFORMS, TORCH_FUNC, TensorFunction, tiny
from benchmarks.workload import Workload

BOUNDS = {
    "grad": 0.25,
    "grad(grad)": 0.35,
    "vmap": 0.35,
    "vmap(grad)": 0.35,
    "jvp": 0.35,
}
NO_TRANSFORM_BOUNDS = {TORCH_FUNC: 1.1}
BASES: dict[str, Any] = {FXFORMS: fxforms.Function, TORCH_FUNC: torch.autograd.Function}


class Rules:
    """x sin(x) with its derivative in both modes."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin() * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * (x.cos() * x + x.sin())

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return tangent * (x.cos() * x + x.sin())


def all_rules(base: Any) -> Any:
    """The Function on `base`, its vmap rule written by hand."""

    class AllRules(Rules, base):
        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
            return AllRules.apply(x), in_dims[0]

    return AllRules


def generated_vmap(base: Any) -> Any:
    """The Function on `base`, its vmap rule generated."""

    class GeneratedVmap(Rules, base):
        generate_vmap_rule = True

    return GeneratedVmap


def combined_form(base: Any) -> Any:
    """The Function on `base` with `ctx` in `forward`, its vmap rule written by hand."""

    class Combined(base):
        backward = staticmethod(Rules.backward)
        jvp = staticmethod(Rules.jvp)

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x.sin() * x

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
            return Combined.apply(x), in_dims[0]

    return Combined


FAMILIES: dict[str, Callable[[Any], Any]] = {
    "custom Function, all rules": all_rules,
    "custom Function, generated vmap": generated_vmap,
}


def summed(function: Any) -> TensorFunction:
    """A scalar function of one tensor that calls a custom Function."""
    return lambda x: function.apply(x).sum()


def functions(make: Callable[[Any], Any]) -> dict[str, TensorFunction]:
    """The function of each side."""
    return {label: summed(make(base)) for label, base in BASES.items()}


def no_transform(family: str, make: Callable[[Any], Any]) -> list[Workload]:
    """Plain autograd, no level active: what a Function costs outside of any transform."""
    applied = {label: make(base).apply for label, base in BASES.items()}
    constant, leaf = tiny(5), tiny(5).requires_grad_()
    runs = {
        "apply": {label: partial(apply, leaf) for label, apply in applied.items()},
        "apply to a constant": {
            label: partial(apply, constant) for label, apply in applied.items()
        },
        "autograd.grad": {
            label: partial(transforms.autograd_grad, f, constant)
            for label, f in functions(make).items()
        },
    }
    return [Workload(family, name, sides, NO_TRANSFORM_BOUNDS) for name, sides in runs.items()]


def workloads() -> list[Workload]:
    """Every transform on each class, then plain autograd."""
    result = [
        transforms.tiny_workload(family, name, functions(make), BOUNDS)
        for family, make in FAMILIES.items()
        for name in transforms.BUILDERS
    ]
    result += no_transform("custom Function, no transform", all_rules)
    return result + no_transform("forward(ctx), no transform", combined_form)
