"""``linearize`` and ``hvp``: derivatives as linear maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms._tree import flatten, leaf_paths, map_leaves, show
from fxforms.errors import ArgumentError, StructureError, describe, name_of
from fxforms.transforms._wrapper import eager
from fxforms.transforms.grad import evaluate
from fxforms.transforms.jvp import push
from fxforms.transforms.vjp import pull


@eager
def linearize(func: Callable[..., Any], *primals: Any) -> Any:
    """The output of ``func`` and its derivative at ``primals`` as a reusable linear map.

    ``func`` runs once. The map is the pullback transposed: the pullback is linear in the
    cotangent, so its own vjp is the map from tangents to output tangents (the double-vjp identity,
    J. Townsend, "A new trick for calculating Jacobian vector products", 2017).

    Args:
        func: returns a pytree of floating or complex tensors.
        *primals: pytrees of floating or complex tensors, at which ``func`` is evaluated.

    Returns:
        ``(output, jvp_fn)``. ``jvp_fn(*tangents)`` takes one tangent for each primal, like it, and
        returns the tangent of the output. It may be called many times and under other transforms.

    Raises:
        ArgumentError: a primal is not a floating or complex tensor.
        OutputError: an output is not a floating or complex tensor.
        StructureError: by ``jvp_fn``, where a tangent is not like its primal.

    Example:
        >>> import torch, fxforms
        >>> out, jvp_fn = fxforms.linearize(lambda x: x**2, torch.tensor(3.0))
        >>> out, jvp_fn(torch.tensor(1.0)), jvp_fn(torch.tensor(2.0))
        (tensor(9.), tensor(6.), tensor(12.))
    """
    output, pullback, _ = pull(func, primals, None, False, "linearize")
    cotangent = map_leaves(torch.zeros_like, output)
    _, transposed, _ = pull(pullback, (cotangent,), None, False, "linearize")
    flat_primals, spec = flatten(primals)
    shapes = [x.shape for x in flat_primals]

    def jvp_fn(*tangents: Any) -> Any:
        flat, tangent_spec = flatten(tangents)
        if tangent_spec != spec:
            raise StructureError(
                f"linearize({name_of(func)}): the tangents must have the structure of the primals, "
                f"{show(spec)}, got {show(tangent_spec)}."
            )
        for index, (tangent, shape) in enumerate(zip(flat, shapes)):
            if not (isinstance(tangent, torch.Tensor) and tangent.shape == shape):
                raise StructureError(
                    f"linearize({name_of(func)}): {leaf_paths(tangents, 'tangents')[index]} is "
                    f"{describe(tangent)}, but the primal there has shape {tuple(shape)}."
                )
        return transposed(tangents)[0]

    return output, jvp_fn


@eager
def hvp(func: Callable[..., Any], primals: Any, tangents: Any, *, has_aux: bool = False) -> Any:
    """The output of a scalar ``func`` and its Hessian-vector product, forward over reverse.

    Args:
        func: returns one real floating tensor of shape ``()``, or with ``has_aux`` the pair
            ``(output, aux)``.
        primals: tuple of the arguments of ``func``, pytrees of floating tensors.
        tangents: the vector; structure, shapes and dtypes of ``primals``.
        has_aux: ``func`` returns auxiliary data beside its output.

    Returns:
        ``(output, product)``, with ``has_aux`` ``(output, product, aux)``; the product is like
        ``primals``. The order is that of ``torch.autograd.functional.hvp``.

    Raises:
        ArgumentError, OutputError, StructureError: as :func:`grad` and :func:`jvp`.

    Reference:
        B. Pearlmutter, "Fast exact multiplication by the Hessian", 1994.

    Example:
        >>> import torch, fxforms
        >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
        >>> fxforms.hvp(lambda x: (x**3).sum(), (x,), (v,))
        (tensor(9.), (tensor([6., 0.]),))
    """
    if not isinstance(primals, tuple):
        raise ArgumentError(
            f"hvp({name_of(func)}): primals must be the tuple of the function's arguments, got "
            f"{describe(primals)}. Write (x,) for one argument."
        )
    every = tuple(range(len(primals)))

    def gradient(*args: Any) -> tuple[Any, Any]:
        found, value, aux = evaluate("hvp", func, every, has_aux, args, {})
        return found, (value, aux)

    gradient.__name__ = name_of(func)
    _, product, value = push(gradient, primals, tangents, None, False, True, "hvp")
    return (value[0], product, value[1]) if has_aux else (value[0], product)
