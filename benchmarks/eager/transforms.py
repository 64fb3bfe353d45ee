"""The transforms users call, on a tiny function: what is timed is the transform, not the ops.

A transform is built once and called many times, as in a training loop; what it does in every call
is in the time, building it is not. `vjp` and `jvp` have no such split.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from benchmarks.eager.sides import APIS, AUTOGRAD, TORCH_FUNC, TensorFunction, tiny
from benchmarks.timing import Side
from benchmarks.workload import Workload

BOUNDS = {
    "grad": 0.5,
    "vjp": 0.5,
    "vmap": 0.35,
    "vmap(grad)": 0.45,
    "hessian": 0.5,
    "jvp": 0.6,
    "grad(grad)": 0.6,
}


def x_sin_x(x: Tensor) -> Tensor:
    """The tiny function: a short chain of ops, then a sum."""
    return (x.sin() * x).sum()


def nth_derivative(x: Tensor, order: int) -> Tensor:
    """x sin(x + n pi/2) + n sin(x + (n - 1) pi/2): that of x sin(x) of order n, by Leibniz."""
    quarter = torch.pi / 2
    return x * (x + order * quarter).sin() + order * (x + (order - 1) * quarter).sin()


def expected(name: str, x: Tensor) -> Any:
    """What each workload gives, in closed form."""
    value, first, second = (x.sin() * x).sum(-1), nth_derivative(x, 1), nth_derivative(x, 2)
    return {
        "grad": first,
        "vjp": (value, first),
        "jvp": (value, first.sum()),
        "vmap": value,
        "vmap(grad)": first,
        "grad(grad)": second,
        "hessian": second.diag_embed(),
    }[name]


def grad(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The gradient of f at x."""
    return partial(api.grad(f), x)


def vjp(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The output of f and the pullback of one."""
    cotangent = torch.ones((), dtype=x.dtype)

    def run() -> tuple[Tensor, Tensor]:
        output, pullback = api.vjp(f, x)
        return output, pullback(cotangent)[0]

    return run


def jvp(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The output of f and its derivative along ones."""
    return partial(api.jvp, f, (x,), (torch.ones_like(x),))


def vmap(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """f of every row."""
    return partial(api.vmap(f), x)


def vmap_grad(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The gradient of f at every row."""
    return partial(api.vmap(api.grad(f)), x)


def grad_grad(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The gradient of the summed gradient."""
    gradient = api.grad(f)
    return partial(api.grad(lambda y: gradient(y).sum()), x)


def hessian(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The Hessian of f at x."""
    return partial(api.hessian(f), x)


def vmap_hessian(api: Any, f: TensorFunction, x: Tensor) -> Side:
    """The Hessian of f at every row: for many elements, as one Hessian of them all has no room."""
    return partial(api.vmap(api.hessian(f)), x)


def autograd_grad(f: TensorFunction, x: Tensor) -> Tensor:
    """The gradient by plain reverse mode."""
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]


def autograd_vjp(f: TensorFunction, x: Tensor) -> tuple[Tensor, Tensor]:
    """Output and gradient by plain reverse mode."""
    leaf = x.detach().requires_grad_()
    output = f(leaf)
    return output.detach(), torch.autograd.grad(output, leaf)[0]


def autograd_jvp(f: TensorFunction, x: Tensor) -> tuple[Tensor, Tensor]:
    """Output and directional derivative by plain forward mode."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        primal, tangent = forward_ad.unpack_dual(f(dual))
        return primal, tangent


def autograd_grad_grad(f: TensorFunction, x: Tensor) -> Tensor:
    """The gradient of the summed gradient by plain double backward."""
    leaf = x.detach().requires_grad_()
    gradient = torch.autograd.grad(f(leaf), leaf, create_graph=True)[0]
    return torch.autograd.grad(gradient.sum(), leaf)[0]


Builder = Callable[[Any, TensorFunction, Tensor], Side]

BUILDERS: dict[str, Builder] = {
    "grad": grad,
    "vjp": vjp,
    "jvp": jvp,
    "vmap": vmap,
    "vmap(grad)": vmap_grad,
    "grad(grad)": grad_grad,
    "hessian": hessian,
}
AUTOGRAD_RUNS: dict[str, Callable[[TensorFunction, Tensor], Any]] = {
    "grad": autograd_grad,
    "vjp": autograd_vjp,
    "jvp": autograd_jvp,
    "grad(grad)": autograd_grad_grad,
    "hessian": torch.autograd.functional.hessian,
}


def sides(name: str, functions: Mapping[str, TensorFunction], x: Tensor) -> dict[str, Side]:
    """All sides of a transform; `functions` holds the function of each side of APIS."""
    build = BUILDERS[name]
    result = {label: build(api, functions[label], x) for label, api in APIS.items()}
    if name in AUTOGRAD_RUNS:
        result[AUTOGRAD] = partial(AUTOGRAD_RUNS[name], functions[TORCH_FUNC], x)
    return result


def tiny_workload(
    family: str, name: str, functions: Mapping[str, TensorFunction], bounds: Mapping[str, float]
) -> Workload:
    """A transform on five elements, or on three rows of five where a batch is mapped over."""
    x = tiny(3, 5) if name.startswith("vmap") else tiny(5)
    held = {TORCH_FUNC: bounds[name]} if name in bounds else {}
    return Workload(family, name, sides(name, functions, x), held, expected(name, x))


def workloads() -> list[Workload]:
    """One workload a transform."""
    functions = dict.fromkeys(APIS, x_sin_x)
    return [tiny_workload("transforms", name, functions, BOUNDS) for name in BUILDERS]
