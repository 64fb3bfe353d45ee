"""Five elements: what is timed is the call, not the arithmetic."""

from typing import Any

from benchmarks.eager import transforms
from benchmarks.eager.sides import TensorFunction, tiny
from benchmarks.staged.peers import JAX, TORCH_COMPILE, sides
from benchmarks.workload import Workload

BOUNDS = {JAX: 1.0, TORCH_COMPILE: 0.3}


def x_sin_x(xp: Any) -> TensorFunction:
    """The tiny function."""
    return lambda x: (xp.sin(x) * x).sum()


def grad(api: Any, xp: Any) -> TensorFunction:
    """Its gradient."""
    return api.grad(x_sin_x(xp))


def vmap_grad(api: Any, xp: Any) -> TensorFunction:
    """Its gradient at every row."""
    return api.vmap(grad(api, xp))


def hessian(api: Any, xp: Any) -> TensorFunction:
    """Its Hessian."""
    return api.hessian(x_sin_x(xp))


BUILDERS = {"grad": grad, "vmap(grad)": vmap_grad, "hessian": hessian}


def workloads() -> list[Workload]:
    """One workload a transform."""
    result = []
    for name, build in BUILDERS.items():
        x = tiny(3, 5) if name.startswith("vmap") else tiny(5)
        expected = transforms.expected(name, x)
        result.append(Workload("tiny", name, sides(build, [x]), BOUNDS, expected))
    return result
