"""Levels of grad: traced away, so that a call with six costs what a call with one does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import fxforms
from benchmarks.eager import depth
from benchmarks.eager.sides import TensorFunction, tiny
from benchmarks.eager.transforms import nth_derivative
from benchmarks.staged.peers import sides
from benchmarks.staged.tiny import x_sin_x
from benchmarks.timing import Side
from benchmarks.workload import Workload

FLAT = 1.1


def derivative(order: int) -> Callable[[Any, Any], TensorFunction]:
    """The derivative of x sin(x) of an order, each one summed before it is derived again."""

    def build(api: Any, xp: Any) -> TensorFunction:
        f = x_sin_x(xp)
        for _ in range(order - 1):
            f = depth.summed(api.grad(f))
        return api.grad(f)

    return build


def order_workload(order: int) -> Workload:
    """`grad` nested `order` times: each has more arithmetic than the one before."""
    x = tiny(5)
    expected = nth_derivative(x, order)
    runs = sides(derivative(order), [x])
    return Workload("depth of grad", str(order), runs, expected=expected, size=order)


def ladder(levels: int) -> TensorFunction:
    """x sin(x) under levels of `grad` that leave no arithmetic: the derivative of y f(x) by y."""
    if levels == 0:
        return x_sin_x(torch)
    inner = ladder(levels - 1)
    return lambda x: fxforms.grad(lambda y: y * inner(x))(x[0])


def levels_workload() -> Workload:
    """Six levels against one; the value is the same."""
    x = tiny(5)
    runs: dict[str, Side] = {
        f"{levels} levels": partial(fxforms.jit(ladder(levels), compile="wait"), x)
        for levels in reversed(depth.DEPTHS)
    }
    expected = (x.sin() * x).sum()
    return Workload("levels of grad", "6 levels", runs, {"1 levels": FLAT}, expected)


def workloads() -> list[Workload]:
    """The series, then the levels."""
    return [*map(order_workload, depth.DEPTHS), levels_workload()]
