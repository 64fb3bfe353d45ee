"""What the transforms are checked against: plain autograd, finite differences, and a loop.

No level of any transform is used here. ``tested.py`` has the same three with transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from opinfo_db.checks.contract import InDims
from opinfo_db.checks.flat import Fun, Tensors, pick, replaced
from opinfo_db.checks.tested import jvp_shape, vjp_shape

#: The dtypes in which finite differences see enough digits, and which one for each other dtype.
DOUBLE = (torch.float64, torch.complex128)
WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_STEP = 1e-4  # truncation and rounding are then both about 1e-12


def _variable(tensor: Tensor) -> Tensor:
    """A tensor that autograd tracks: ``tensor`` itself if an outer derivative tracks it."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def pullback(outputs: Sequence[Tensor], inputs: Tensors, cotangents: Sequence[Tensor]) -> Tensors:
    """The gradients of ``outputs`` in ``inputs``, zeros where there is no path, with a graph."""
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(x) for x in inputs)
    ys, cs = zip(*pairs, strict=True)
    grads = torch.autograd.grad(ys, inputs, cs, create_graph=True, allow_unused=True)
    return tuple(
        torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)
    )


def vjp_of(fun: Fun) -> Fun:
    """The vjp of ``fun`` by ``torch.autograd.grad``."""

    def call(*args: Tensor) -> Tensors:
        inputs, cotangents = args[: fun.n_in], args[fun.n_in :]
        with torch.enable_grad():
            primals = tuple(map(_variable, pick(inputs, fun.diff_in)))
            outputs = fun.call(*replaced(inputs, fun.diff_in, primals))
            grads = pullback(pick(outputs, fun.diff_out), primals, cotangents)
        return (*outputs, *grads)

    return vjp_shape(fun, call)


def _pushforward_by_autograd(fun: Fun, inputs: Tensors, tangents: Tensors) -> Tensors:
    """The output tangents, by transposing the pullback: it is linear in the cotangent.

    See J. Townsend, "A new trick for calculating Jacobian vector products" (2017).
    """
    with torch.enable_grad():
        primals = tuple(map(_variable, pick(inputs, fun.diff_in)))
        outputs = pick(fun.call(*replaced(inputs, fun.diff_in, primals)), fun.diff_out)
        cotangents = tuple(torch.ones_like(y).requires_grad_() for y in outputs)
        grads = pullback(outputs, primals, cotangents)
        if not _depends(grads, cotangents):
            if not any(
                g.count_nonzero() for g in grads
            ):  # a step function: zero where it is smooth
                return tuple(torch.zeros_like(y) for y in outputs)
            raise RuntimeError("no gradient depends on a cotangent: once_differentiable, or zero")
        return pullback(grads, cotangents, tangents)


def _depends(outputs: Tensors, inputs: Tensors) -> bool:
    """True if autograd knows a path from one of ``inputs`` to one of ``outputs``.

    A ``once_differentiable`` backward has none, and does not raise either.
    """
    linked = [y for y in outputs if y.requires_grad]
    if not linked:
        return False
    ones = [torch.ones_like(y) for y in linked]
    grads = torch.autograd.grad(linked, inputs, ones, retain_graph=True, allow_unused=True)
    return any(g is not None for g in grads)


def widened(tensor: Tensor) -> Tensor:
    """``tensor`` in double precision, if it is floating or complex."""
    return tensor.to(WIDER.get(tensor.dtype, tensor.dtype))


def _pushforward_by_differences(fun: Fun, inputs: Tensors, tangents: Tensors) -> Tensors:
    """The output tangents, by a central difference of fourth order in double precision."""
    primals = [widened(x) for x in pick(inputs, fun.diff_in)]
    steps = [_STEP * widened(t) for t in tangents]
    wide = [widened(x) for x in inputs]

    def at(times: int) -> Tensors:
        moved = [x + times * s for x, s in zip(primals, steps, strict=True)]
        return pick(fun.call(*replaced(wide, fun.diff_in, moved)), fun.diff_out)

    columns = zip(at(2), at(1), at(-1), at(-2), strict=True)
    return tuple((8 * (b - c) - (a - d)) / (12 * _STEP) for a, b, c, d in columns)


def jvp_of(fun: Fun, autograd: bool) -> Fun:
    """The jvp of ``fun``; by autograd alone if it can go twice through ``fun``.

    Where ``autograd`` is false, or the graph cannot be differentiated so often, it is a central
    finite difference in double precision.
    """

    def call(*args: Tensor) -> Tensors:
        inputs, tangents = args[: fun.n_in], args[fun.n_in :]
        outputs = fun.call(*inputs)
        pushed = _pushforward(fun, inputs, tangents, autograd)
        like = pick(outputs, fun.diff_out)
        return (*outputs, *(t.to(y.dtype) for t, y in zip(pushed, like, strict=True)))

    return jvp_shape(fun, call)


def _pushforward(fun: Fun, inputs: Tensors, tangents: Tensors, autograd: bool) -> Tensors:
    """The output tangents, by the first of the two ways that runs."""
    if autograd:
        try:
            return _pushforward_by_autograd(fun, inputs, tangents)
        except (RuntimeError, NotImplementedError):
            pass
    return _pushforward_by_differences(fun, inputs, tangents)


def batch_size(in_dims: InDims, tensors: Sequence[Tensor]) -> int:
    """The common size of the batch dims."""
    return next(t.shape[d] for t, d in zip(tensors, in_dims, strict=True) if d is not None)


def member(tensor: Tensor, dim: int | None, index: int) -> Tensor:
    """What sample ``index`` of the batch sees of ``tensor``, contiguous and in memory of its own.

    An operation such as ``as_strided`` sees the memory behind a view.
    """
    if dim is None:
        return tensor
    return tensor.select(dim, index).clone(memory_format=torch.contiguous_format)


def vmap_of(fun: Fun, in_dims: InDims, out_dims: int = 0) -> Fun:
    """``fun`` mapped by a loop over the batch."""

    def call(*args: Tensor) -> Tensors:
        size = batch_size(in_dims, args)
        results = [
            fun.call(*(member(x, d, index) for x, d in zip(args, in_dims, strict=True)))
            for index in range(size)
        ]
        return tuple(torch.stack(column, out_dims) for column in zip(*results, strict=True))

    return Fun(call, fun.n_in, fun.n_out, fun.diff_in, fun.diff_out)


def detached(call: Callable[[], Tensors]) -> Tensors:
    """What ``call`` returns, without a graph."""
    return tuple(t.detach() for t in call())
