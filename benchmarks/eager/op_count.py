"""A growing number of ops under one and under two levels of `grad`: time should be a line."""

from typing import Any

from torch import Tensor

from benchmarks.eager import transforms
from benchmarks.eager.sides import APIS, TensorFunction, tiny
from benchmarks.workload import Workload

COUNTS = (1, 2, 4, 8, 16, 32, 64)
BUILDERS = {"ops under grad": transforms.grad, "ops under grad(grad)": transforms.grad_grad}


def chain(count: int) -> TensorFunction:
    """`count` sines in a row, then a sum."""

    def f(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x.sin()
        return x.sum()

    return f


def workload(family: str, build: transforms.Builder, count: int) -> Workload:
    """One point of a series."""
    runs: dict[str, Any] = {label: build(api, chain(count), tiny(5)) for label, api in APIS.items()}
    return Workload(family, str(count), runs, size=count)


def workloads() -> list[Workload]:
    """Both series."""
    return [workload(name, build, count) for name, build in BUILDERS.items() for count in COUNTS]
