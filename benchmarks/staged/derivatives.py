"""Derivatives of networks: Hessian, Laplacian, Jacobians, one directional derivative."""

from collections.abc import Callable
from typing import Any

from benchmarks.eager.sides import TORCH_FUNC
from benchmarks.staged import models
from benchmarks.staged.peers import sides
from benchmarks.workload import BEST, Workload

FAMILY = "derivatives of networks"
BOUNDS = {BEST: 1.2, TORCH_FUNC: 0.1}
JVP_BOUNDS = {BEST: 1.2, TORCH_FUNC: 0.08}
POINTS = 256


def scalar(xp: Any, parameters: Any) -> Callable[[Any], Any]:
    """A network of one output as a function of its input."""
    return lambda x: models.mlp(xp, parameters, x)[0]


def hessian(api: Any, xp: Any) -> Callable[..., Any]:
    """The Hessian by the input."""
    return lambda parameters, x: api.hessian(scalar(xp, parameters))(x)


def laplacian(api: Any, xp: Any) -> Callable[..., Any]:
    """The trace of the Hessian at each point."""

    def at(parameters: Any, x: Any) -> Any:
        return xp.trace(api.hessian(scalar(xp, parameters))(x))

    return api.vmap(at, (None, 0))


def jvp(api: Any, xp: Any) -> Callable[..., Any]:
    """Value and directional derivative."""

    def run(parameters: Any, x: Any, tangent: Any) -> Any:
        return api.jvp(lambda x: models.mlp(xp, parameters, x), (x,), (tangent,))

    return run


def jacrev(api: Any, xp: Any) -> Callable[..., Any]:
    """The Jacobian by the input, row by row."""
    return lambda parameters, x: api.jacrev(lambda x: models.mlp(xp, parameters, x))(x)


def jacfwd(api: Any, xp: Any) -> Callable[..., Any]:
    """The Jacobian by the input, column by column."""
    return lambda parameters, x: api.jacfwd(lambda x: models.mlp(xp, parameters, x))(x)


def workloads() -> list[Workload]:
    """One workload a derivative."""
    square, x = models.dense(64, 64, 64), models.data(64)
    curvature = sides(hessian, [models.dense(32, 64, 1), models.data(32)])
    points = sides(laplacian, [models.dense(3, 64, 64, 1), models.data(POINTS, 3)])
    along = sides(jvp, [square, x, models.data(64)])
    return [
        Workload(FAMILY, "hessian, 2-layer MLP, 32 inputs", curvature, BOUNDS),
        Workload(FAMILY, f"Laplacian at {POINTS} points", points, BOUNDS),
        Workload(FAMILY, "jvp, 64-64 MLP", along, JVP_BOUNDS),
        Workload(FAMILY, "jacrev, 64-64 MLP", sides(jacrev, [square, x]), BOUNDS),
        Workload(FAMILY, "jacfwd, 64-64 MLP", sides(jacfwd, [square, x]), BOUNDS),
    ]
