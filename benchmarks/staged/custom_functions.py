"""A custom Function under the transforms: x sin(x) with its derivative by hand, on every side."""

from collections.abc import Callable
from typing import Any

import torch

import fxforms
from benchmarks.eager import custom_functions, transforms
from benchmarks.eager.sides import TensorFunction, tiny
from benchmarks.staged.peers import jax, sides
from benchmarks.staged.tiny import BOUNDS
from benchmarks.workload import Workload

Elementwise = Callable[[Any], Any]


def torch_function(api: Any) -> Elementwise:
    """The Function of eager's workloads on the base class that belongs to `api`."""
    base = fxforms.Function if api is fxforms else torch.autograd.Function
    apply: Elementwise = custom_functions.generated_vmap(base).apply
    return apply


def value(x: Any) -> Any:
    """x sin(x) in JAX."""
    assert jax
    return jax.numpy.sin(x) * x


def slope(x: Any) -> Any:
    """Its derivative in JAX."""
    assert jax
    return jax.numpy.cos(x) * x + jax.numpy.sin(x)


def jax_vjp_function() -> Elementwise:
    """The same by jax.custom_vjp, which has no forward mode."""
    assert jax
    function = jax.custom_vjp(lambda x: value(x))
    function.defvjp(lambda x: (value(x), x), lambda x, cotangent: (cotangent * slope(x),))
    result: Elementwise = function
    return result


def jax_jvp_function() -> Elementwise:
    """The same by jax.custom_jvp."""
    assert jax
    function = jax.custom_jvp(lambda x: value(x))
    function.defjvp(lambda primals, tangents: (value(*primals), tangents[0] * slope(*primals)))
    result: Elementwise = function
    return result


def summed(api: Any) -> TensorFunction:
    """The Function, then a sum."""
    function = jax_vjp_function() if api is jax else torch_function(api)
    return lambda x: function(x).sum()


def grad(api: Any, xp: Any) -> TensorFunction:
    """The gradient."""
    return api.grad(summed(api))


def vmap(api: Any, xp: Any) -> TensorFunction:
    """The function at every row."""
    return api.vmap(summed(api))


def vmap_grad(api: Any, xp: Any) -> TensorFunction:
    """The gradient at every row."""
    return api.vmap(api.grad(summed(api)))


def grad_grad(api: Any, xp: Any) -> TensorFunction:
    """The gradient of the summed gradient."""
    gradient = api.grad(summed(api))
    return api.grad(lambda x: gradient(x).sum())


def jvp(api: Any, xp: Any) -> TensorFunction:
    """Value and derivative along ones."""
    function = jax_jvp_function() if api is jax else torch_function(api)
    return lambda x: api.jvp(lambda y: function(y).sum(), (x,), (xp.ones_like(x),))


BUILDERS = {
    "grad": grad,
    "vmap": vmap,
    "vmap(grad)": vmap_grad,
    "jvp": jvp,
    "grad(grad)": grad_grad,
}


def workloads() -> list[Workload]:
    """One workload a transform."""
    result = []
    for name, build in BUILDERS.items():
        x = tiny(3, 5) if name.startswith("vmap") else tiny(5)
        expected = transforms.expected(name, x)
        runs = sides(build, [x])
        result.append(Workload("custom Function", name, runs, BOUNDS, expected))
    return result
