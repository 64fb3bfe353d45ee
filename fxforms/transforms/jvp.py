"""``jvp``: the output of a function and its derivative along a tangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten, is_atom, leaf_paths, show
from fxforms.errors import ArgumentError, OutputError, StructureError, describe, name_of, translate
from fxforms.interpreters import jvp_level
from fxforms.transforms._arguments import (
    Argnums,
    check_inputs,
    select,
    split_aux,
    unwrap_all,
    wrap_all,
)
from fxforms.transforms._wrapper import eager


def flatten_args(args: Any) -> tuple[list[Any], PyTreeSpec | int]:
    """The leaves of ``args`` and their structure; for a tuple of leaves, its length."""
    if type(args) is tuple and all(isinstance(x, torch.Tensor) or is_atom(x) for x in args):
        return list(args), len(args)
    return flatten(args)


def make_duals(primals: Any, tangents: Any, api: str, func: Callable[..., Any]) -> Any:
    """``primals`` paired with ``tangents`` at the top jvp level."""
    flat, spec = flatten_args(primals)
    flat_tangents, tangent_spec = flatten_args(tangents)
    if spec != tangent_spec:
        raise StructureError(
            f"{api}({name_of(func)}): primals and tangents must have one structure, got "
            f"{show(flatten(primals)[1])} and {show(flatten(tangents)[1])}."
        )
    if not flat:
        raise ArgumentError(f"{api}({name_of(func)}): no primals to differentiate.")
    check_inputs(flat, primals, "primals", api, func)
    for index, (primal, tangent) in enumerate(zip(flat, flat_tangents)):
        if not (isinstance(tangent, torch.Tensor) and tangent.shape == primal.shape):
            raise StructureError(
                f"{api}({name_of(func)}): {leaf_paths(tangents, 'tangents')[index]} is "
                f"{describe(tangent)}, but the primal there is {describe(primal)}. They must have "
                f"one shape."
            )
        if tangent.dtype != primal.dtype:
            raise StructureError(
                f"{api}({name_of(func)}): {leaf_paths(tangents, 'tangents')[index]} is of dtype "
                f"{tangent.dtype}, but the primal there is of dtype {primal.dtype}. Cast one."
            )
    duals = [substrate.make_dual(p, t) for p, t in zip(flat, flat_tangents)]
    return tuple(duals) if isinstance(spec, int) else spec.unflatten(duals)


def split_dual(
    output: Any, level: int, strict: bool, path: str, api: str, func: Callable[..., Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Value and tangent of one output, off ``level``; None for a tangent that is zero."""
    if not isinstance(output, torch.Tensor):
        raise OutputError(
            f"{api}({name_of(func)}): {path} is {describe(output)}, but every output must be a "
            f"tensor. Return other values through has_aux=True."
        )
    output = substrate.unwrap_if_dead(output)
    primal = substrate.unwrap_for_grad(output, level)
    tangent = substrate.tangent_of(output)
    if tangent is not None:
        return primal, substrate.unwrap_for_grad(tangent, level)
    if strict:
        raise OutputError(
            f"{api}({name_of(func)}, strict=True): {path} does not depend on the primals."
        )
    return primal, None


def push(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    tangents: Any,
    argnums: Argnums | None,
    strict: bool,
    has_aux: bool,
    api: str,
) -> tuple[Any, Any, Any]:
    """``(output, tangent, aux)``; ``tangents`` is for the arguments of ``argnums`` (None: all)."""
    try:
        with jvp_level() as level:
            if argnums is None:
                duals = make_duals(args, tangents, api, func)
            else:
                chosen = select(argnums, len(args), api, func)
                duals = [x if i in chosen else wrap_all(x, level) for i, x in enumerate(args)]
                for i, dual in zip(
                    chosen, make_duals(tuple([args[i] for i in chosen]), tangents, api, func)
                ):
                    duals[i] = dual
            output, aux = split_aux(func(*duals), has_aux, api, func)
            flat, spec = flatten(output)
            if not flat:
                raise OutputError(f"{api}({name_of(func)}): the function returned no tensor.")
            pairs = [
                split_dual(leaf, level, strict, f"output {i}", api, func)
                for i, leaf in enumerate(flat)
            ]
            if has_aux:
                aux = unwrap_all(aux, level)
    except RuntimeError as error:
        translate(error, f"{api}({name_of(func)})")
        raise
    tangent = [torch.zeros_like(p) if t is None else t for p, t in pairs]
    return spec.unflatten([p for p, _ in pairs]), spec.unflatten(tangent), aux


@eager
def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """The output of ``func`` and its Jacobian-vector product, by forward mode.

    Args:
        func: returns a pytree of tensors, or with ``has_aux`` the pair ``(output, aux)``.
        primals: tuple of the arguments of ``func``, pytrees of floating or complex tensors.
        tangents: the direction; structure, shapes and dtypes of ``primals``.
        strict: an output that does not depend on the primals is an error; else its tangent is zero.
        has_aux: ``func`` returns auxiliary data beside its output.

    Returns:
        ``(output, tangent)``, with ``has_aux`` ``(output, tangent, aux)``; the tangent is like the
        output.

    Raises:
        ArgumentError: ``primals`` is not a tuple of floating or complex tensors.
        StructureError: ``tangents`` is not like ``primals``.
        OutputError: an output is not a tensor, or is independent of the primals under ``strict``.

    Example:
        >>> import torch, fxforms
        >>> fxforms.jvp(lambda x: x**3, (torch.tensor(2.0),), (torch.tensor(1.0),))
        (tensor(8.), tensor(12.))
    """
    if not isinstance(primals, tuple):
        raise ArgumentError(
            f"jvp({name_of(func)}): primals must be the tuple of the function's arguments, got "
            f"{describe(primals)}. Write (x,) for one argument."
        )
    output, tangent, aux = push(func, primals, tangents, None, strict, has_aux, "jvp")
    return (output, tangent, aux) if has_aux else (output, tangent)
