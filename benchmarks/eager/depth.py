"""Nesting depth 1 to 6.

The derivatives of x sin(x) have a closed form, which the nested `grad` is compared with. Their
cost is not linear in the depth on any side, as each derivative has more ops than the one before.
Two other series do the same work on every level, so their time should be a straight line: a ladder
of first derivatives, and nested `vmap`.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.eager.sides import APIS, TensorFunction, tiny
from benchmarks.eager.transforms import nth_derivative, x_sin_x
from benchmarks.workload import Workload

DEPTHS = range(1, 7)


def nested_grad(api: Any, depth: int) -> TensorFunction:
    """The derivative of x_sin_x of order `depth`, each one summed before it is derived again."""
    derivative: TensorFunction = api.grad(x_sin_x)
    for _ in range(depth - 1):
        derivative = api.grad(summed(derivative))
    return derivative


def summed(f: TensorFunction) -> TensorFunction:
    """f, then a sum."""
    return lambda x: f(x).sum()


def grad_workload(depth: int) -> Workload:
    """`grad` nested `depth` times."""
    x = tiny(5, dtype=torch.float64)
    runs = {label: partial(nested_grad(api, depth), x) for label, api in APIS.items()}
    expected = nth_derivative(x, depth)
    return Workload("depth of grad", str(depth), runs, expected=expected, size=depth)


def ladder(api: Any, depth: int) -> TensorFunction:
    """x_sin_x under `depth` levels of `grad`, each of which adds the same few ops."""
    if depth == 0:
        return x_sin_x
    inner = ladder(api, depth - 1)

    def rung(x: Tensor) -> Tensor:
        return api.grad(lambda y: (y * inner(x)).sum())(x).mean()

    return rung


def ladder_workload(depth: int) -> Workload:
    """A ladder of `depth` levels, whose value is that of x_sin_x."""
    x = tiny(5, dtype=torch.float64)
    runs = {label: partial(ladder(api, depth), x) for label, api in APIS.items()}
    expected = (x.sin() * x).sum()
    return Workload("levels of grad", str(depth), runs, expected=expected, size=depth)


def nested_vmap(api: Any, depth: int) -> TensorFunction:
    """x_sin_x of the last axis, under `depth` vmaps."""
    mapped: TensorFunction = x_sin_x
    for _ in range(depth):
        mapped = api.vmap(mapped)
    return mapped


def vmap_workload(depth: int) -> Workload:
    """`vmap` nested `depth` times over axes of one element, so that only the levels grow."""
    x = tiny(*[1] * depth, 5, dtype=torch.float64)
    runs = {label: partial(nested_vmap(api, depth), x) for label, api in APIS.items()}
    expected = (x.sin() * x).sum(-1)
    return Workload("depth of vmap", str(depth), runs, expected=expected, size=depth)


def workloads() -> list[Workload]:
    """All series."""
    series = (grad_workload, ladder_workload, vmap_workload)
    return [make(depth) for make in series for depth in DEPTHS]
