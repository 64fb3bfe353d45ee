"""The transforms once more, by means that share nothing with levels: plain autograd and loops.

The functions have the signatures of fxforms, so a test can run one program with either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Fun = Callable[..., Any]


def vec(*shape: int) -> Tensor:
    """A random float64 tensor."""
    return torch.randn(shape, dtype=torch.float64)


def _leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def _pull(outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Any) -> list[Tensor]:
    """Gradients as functions of everything, zeros for an input without influence."""
    pairs = [(o, w) for o, w in zip(outputs, weights) if o.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    gradients = torch.autograd.grad(
        [o for o, _ in pairs],
        inputs,
        [w for _, w in pairs],
        create_graph=True,
        allow_unused=True,
    )
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, gradients)]


def _fresh(tensor: Tensor) -> Tensor:
    """A tensor of its own to differentiate with respect to, still part of the outer graph."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()


def vjp(func: Fun, *primals: Any, has_aux: bool = False) -> Any:
    flat, spec = pytree.tree_flatten(primals)
    inputs = [_fresh(x) for x in flat]
    result = func(*pytree.tree_unflatten(inputs, spec))
    output, aux = result if has_aux else (result, None)

    def pullback(cotangents: Any) -> Any:
        return pytree.tree_unflatten(_pull(_leaves(output), inputs, _leaves(cotangents)), spec)

    return (output, pullback, aux) if has_aux else (output, pullback)


def grad(func: Fun, argnums: Any = 0) -> Fun:
    def run(*args: Any) -> Any:
        chosen = argnums if isinstance(argnums, tuple) else (argnums,)

        def partial(*given: Any) -> Any:
            full = list(args)
            for place, value in zip(chosen, given):
                full[place] = value
            return func(*full)

        output, pullback = vjp(partial, *[args[i] for i in chosen])
        gradients = pullback(torch.ones_like(output))
        return gradients if isinstance(argnums, tuple) else gradients[0]

    return run


def jvp(func: Fun, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """By the double-vjp identity: the pullback is linear in the cotangent, pull it back."""
    output, pullback = vjp(func, *primals)
    flat, spec = pytree.tree_flatten(output)
    dummies = [torch.zeros_like(x).requires_grad_() for x in flat]
    gradients = _leaves(pullback(pytree.tree_unflatten(dummies, spec)))
    pushed = _pull(gradients, dummies, _leaves(tangents))
    return output, pytree.tree_unflatten(pushed, spec)


def vmap(func: Fun, in_dims: Any = 0, out_dims: Any = 0) -> Fun:
    """A loop over the samples; ``in_dims`` an int or a flat tuple, ``out_dims`` for all outputs."""

    def run(*args: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        size = next(_leaves(x)[0].shape[d] for x, d in zip(args, dims) if d is not None)

        def sample(index: int) -> Any:
            def take(arg: Any, dim: int | None) -> Any:
                if dim is None:
                    return arg
                return pytree.tree_map(lambda x: x.select(dim, index), arg)

            return func(*[take(x, d) for x, d in zip(args, dims)])

        samples = [pytree.tree_flatten(sample(i)) for i in range(size)]
        spec = samples[0][1]
        stacked = [torch.stack(parts, out_dims) for parts in zip(*[flat for flat, _ in samples])]
        return pytree.tree_unflatten(stacked, spec)

    return run


def jacrev(func: Fun) -> Fun:
    """The Jacobian of one tensor with respect to one tensor, row by row."""

    def run(x: Tensor) -> Tensor:
        output, pullback = vjp(func, x)
        rows = [
            pullback(row.reshape(output.shape))[0]
            for row in torch.eye(output.numel(), dtype=output.dtype)
        ]
        return torch.stack(rows).reshape(output.shape + x.shape)

    return run


def finite_jacobian(func: Fun, x: Tensor, step: float = 1e-6) -> Tensor:
    """The Jacobian by central differences, in float64."""
    columns = []
    for row in torch.eye(x.numel(), dtype=x.dtype):
        shift = step * row.reshape(x.shape)
        columns.append((func(x + shift) - func(x - shift)) / (2 * step))
    return torch.stack(columns, -1).reshape(columns[0].shape + x.shape).detach()


def assert_trees_close(actual: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    """One structure, and every tensor of one shape and dtype and close; detached both."""
    flat, spec = pytree.tree_flatten(actual)
    expected_flat, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec
    for x, y in zip(flat, expected_flat):
        assert isinstance(x, Tensor), type(x)
        torch.testing.assert_close(x.detach(), y.detach(), rtol=rtol, atol=atol)
