"""The transforms under test, from flat functions to flat functions.

Each takes a :class:`Fun` and gives the :class:`Fun` of the transformed function, so that they nest
in any order. ``oracle.py`` has the same three with plain autograd and a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from opinfo_db.checks.contract import InDims
from opinfo_db.checks.flat import Fun, Tensors, pick, replaced
from opinfo_db.checks.transforms import Transforms


def vjp_shape(fun: Fun, call: Callable[..., Tensors]) -> Fun:
    """``(inputs, cotangents) -> (outputs, gradients)``; all that is new is differentiable."""
    ins, outs = len(fun.diff_out), len(fun.diff_in)
    return _grown(fun, call, ins, outs)


def jvp_shape(fun: Fun, call: Callable[..., Tensors]) -> Fun:
    """``(inputs, tangents) -> (outputs, output tangents)``; what is new is differentiable."""
    ins, outs = len(fun.diff_in), len(fun.diff_out)
    return _grown(fun, call, ins, outs)


def _grown(fun: Fun, call: Callable[..., Tensors], ins: int, outs: int) -> Fun:
    """``call`` with so many more differentiable inputs and outputs than ``fun``."""
    return Fun(
        call,
        fun.n_in + ins,
        fun.n_out + outs,
        (*fun.diff_in, *range(fun.n_in, fun.n_in + ins)),
        (*fun.diff_out, *range(fun.n_out, fun.n_out + outs)),
    )


def split_outputs(fun: Fun, args: Tensors) -> Callable[..., tuple[Tensors, Tensors]]:
    """``fun`` of its differentiable inputs alone: (differentiable outputs, the other outputs)."""
    others = [i for i in range(fun.n_out) if i not in fun.diff_out]

    def inner(*primals: Tensor) -> tuple[Tensors, Tensors]:
        outputs = fun.call(*replaced(args, fun.diff_in, primals))
        return pick(outputs, fun.diff_out), pick(outputs, others)

    return inner


def joined_outputs(fun: Fun, differentiable: Tensors, others: Tensors) -> Tensors:
    """The outputs of ``fun`` in their order, from the two parts of :func:`split_outputs`."""
    parts = (iter(differentiable), iter(others))
    return tuple(next(parts[i not in fun.diff_out]) for i in range(fun.n_out))


def vjp_of(fun: Fun, transforms: Transforms) -> Fun:
    """The vjp of ``fun`` as a function of inputs and cotangents."""

    def call(*args: Tensor) -> Tensors:
        inputs, cotangents = args[: fun.n_in], args[fun.n_in :]
        inner = split_outputs(fun, inputs)
        out, vjp_fn, aux = transforms.vjp(inner, *pick(inputs, fun.diff_in), has_aux=True)
        return (*joined_outputs(fun, out, aux), *vjp_fn(cotangents))

    return vjp_shape(fun, call)


def jvp_of(fun: Fun, transforms: Transforms) -> Fun:
    """The jvp of ``fun`` as a function of inputs and tangents."""

    def call(*args: Tensor) -> Tensors:
        inputs, tangents = args[: fun.n_in], args[fun.n_in :]
        inner = split_outputs(fun, inputs)
        primals = pick(inputs, fun.diff_in)
        out, tangents_out, aux = transforms.jvp(inner, primals, tangents, has_aux=True)
        return (*joined_outputs(fun, out, aux), *tangents_out)

    return jvp_shape(fun, call)


def vmap_of(
    fun: Fun, transforms: Transforms, in_dims: InDims, randomness: str, out_dims: int = 0
) -> Fun:
    """``fun`` mapped over the batch dims ``in_dims`` of its inputs."""
    call = transforms.vmap(fun.call, in_dims, out_dims, randomness=randomness)
    return Fun(call, fun.n_in, fun.n_out, fun.diff_in, fun.diff_out)


def jit_of(fun: Fun, transforms: Transforms) -> Fun:
    """``fun`` traced once a signature."""
    return replace(fun, call=transforms.jit(fun.call))
