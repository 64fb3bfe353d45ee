"""A meta-gradient: through 20 steps of gradient descent on ten points (Finn et al., 2017).

JAX has two ways to write the loop, and both are measured.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import optree

from benchmarks.eager.sides import TORCH_FUNC
from benchmarks.staged import models
from benchmarks.staged.peers import JAX, jax, jax_side, sides
from benchmarks.workload import BEST, Workload

STEPS = 20
STEP_SIZE = 0.01
BOUNDS = {BEST: 1.2, TORCH_FUNC: 0.1}

Loop = Callable[[Callable[[Any], Any], Any], Any]


def unrolled(step: Callable[[Any], Any], parameters: Any) -> Any:
    """The steps one after the other."""
    for _ in range(STEPS):
        parameters = step(parameters)
    return parameters


def scanned(step: Callable[[Any], Any], parameters: Any) -> Any:
    """The steps as a loop of JAX."""
    assert jax
    return jax.lax.scan(lambda carry, _: (step(carry), None), parameters, length=STEPS)[0]


def meta_gradient(api: Any, xp: Any, loop: Loop = unrolled) -> Callable[..., Any]:
    """The gradient, by the first parameters, of the loss on other points after the steps."""

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return ((models.mlp(xp, parameters, x) - y) ** 2).mean()

    def after(parameters: Any, x: Any, y: Any, query_x: Any, query_y: Any) -> Any:
        def step(now: Any) -> Any:
            gradient = api.grad(loss)(now, x, y)
            return optree.tree_map(lambda p, g: p - STEP_SIZE * g, now, gradient)

        return loss(loop(step, parameters), query_x, query_y)

    return api.grad(after)


def workloads() -> list[Workload]:
    """One workload."""
    x, query = models.data(10, 1), models.data(20, 1)[10:].contiguous()
    arguments = [models.dense(1, 40, 40, 1), x, x.sin(), query, query.sin()]
    runs = sides(meta_gradient, arguments)
    runs[f"{JAX}, scan"] = jax_side(partial(meta_gradient, loop=scanned), arguments)
    return [Workload("meta-learning", f"MAML, {STEPS} inner steps", runs, BOUNDS, tolerance=1e-4)]
