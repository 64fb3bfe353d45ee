"""``cond``: one of two functions, by a predicate that may be known only at the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten, leaf_paths, map_tensors, show, take_tensors
from fxforms.control.captured import Found, Masked, Replaced
from fxforms.control.choice import Choice
from fxforms.errors import ArgumentError, MutationError, StructureError, describe, name_of
from fxforms.functions.inline import has_tangent
from fxforms.functions.opaque import Tracer, ValueNeeded
from fxforms.functions.presented import presented
from fxforms.transforms._wrapper import eager
from fxforms.transforms.flat import Tensors, is_inexact

Pair = tuple[Callable[..., Any], Callable[..., Any]]
Put = Callable[[Sequence[Any]], Any]


@eager
def cond(
    pred: torch.Tensor | bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
) -> Any:
    """``true_fn(*operands)`` if ``pred`` holds, else ``false_fn(*operands)``.

    Only the branch that is taken runs, and only it is differentiated, also in a graph of
    :func:`fxforms.jit`, which holds both and chooses at each call. Where :func:`fxforms.vmap`
    batches ``pred``, both run on the whole batch, and the samples are selected: a branch that is
    not taken for a sample reaches neither its value nor its derivatives, whatever it computes.

    Args:
        pred: a bool tensor of one element, or a bool. It has no derivative.
        true_fn, false_fn: functions of the operands. Under ``jit``, and for a batched ``pred``,
            they return the same structure, shapes and dtypes.
        *operands: pytrees of tensors and other values.

    Returns:
        What the branch returns.

    Raises:
        ArgumentError: ``pred`` is something else.
        StructureError: the branches return different structures, shapes or dtypes, where both run
            or are traced.
        MutationError: a branch changes a tensor in place that it was given or captures, where
            ``pred`` is batched.
        TraceError: it does so under ``jit``; or a branch that draws random numbers is
            differentiated in reverse there.

    Example:
        >>> import torch, fxforms
        >>> def root(x):
        ...     return fxforms.cond(x > 0, torch.sqrt, torch.zeros_like, x)
        >>> fxforms.vmap(fxforms.grad(root))(torch.tensor([4.0, 0.0, -1.0]))
        tensor([0.2500, 0.0000, 0.0000])

    The meaning is that of ``jax.lax.cond``, and the names are those of ``torch.cond``.
    """
    branches = true_fn, false_fn
    if isinstance(pred, bool):
        return branches[not pred](*operands)
    pred = checked(pred, branches)
    if is_anywhere_batched(pred):
        return select(pred, branches, operands)
    try:
        taken = bool(pred)
    except ValueNeeded as error:
        tracer = error.tracer
    else:
        return branches[not taken](*operands)
    return staged(tracer, pred, branches, operands)


def checked(pred: Any, branches: Pair) -> torch.Tensor:
    """``pred`` as a tensor without dims; raises ArgumentError if it is no predicate."""
    is_tensor = isinstance(pred, torch.Tensor)
    if is_tensor and pred.dtype is torch.bool and pred.numel() == 1:
        scalar: torch.Tensor = presented(pred).reshape(())
        return scalar
    advice = "Reduce it by all() or any(), or choose element by element with torch.where."
    if not is_tensor or pred.dtype is not torch.bool:
        advice = "Compare it with something, as in x > 0."
    raise ArgumentError(
        f"{call(branches)}: the predicate is {describe(pred)}, and must be a bool, or a torch.bool "
        f"tensor of one element. {advice}"
    )


def call(branches: Pair) -> str:
    """The call as a message names it."""
    return f"cond({name_of(branches[0])}, {name_of(branches[1])})"


def is_anywhere_batched(tensor: torch.Tensor) -> bool:
    """True if a vmap level batches ``tensor``, also under wrappers of other levels."""
    while substrate.is_wrapped(tensor):
        if substrate.is_batched(tensor):
            return True
        tensor = substrate.unwrapped(tensor)
    return False


def select(pred: torch.Tensor, branches: Pair, operands: tuple[Any, ...]) -> Any:
    """Both branches on the whole batch, and of each sample the one that is taken."""
    tensors, put = take_tensors(operands)
    found = [
        run_masked(taken, branch, put, tensors)
        for taken, branch in zip((pred, pred.logical_not()), branches)
    ]
    return merged(branches, found, lambda x, y: torch.where(pred, x, y))


def run_masked(
    taken: torch.Tensor, branch: Callable[..., Any], put: Put, tensors: Sequence[torch.Tensor]
) -> Any:
    """``branch`` with derivatives only of the samples that have ``taken`` it.

    See NOTE [what a branch that is not taken must not reach].
    """
    mask = partial(masked, taken)
    given = [mask(x) for x in tensors]
    watching = Masked(given, mask)
    before = substrate.versions((*given,))
    with watching:
        output = called(branch, put(given))
    if before != substrate.versions((*given,)) or watching.changed():
        raise MutationError(
            f"cond: {name_of(branch)} changed a tensor in place that it was given or captures, and "
            f"the predicate is batched, so that the change would reach samples that do not take "
            f"the branch. Clone the tensor first, or return the new value."
        )
    return output


def masked(taken: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, a constant where ``taken`` is false.

    NOTE [what a branch that is not taken must not reach]

    Where a branch computes an infinity, its derivative multiplies the zero that ``where`` sends it
    by an infinity, and the NaN reaches the operand. So ``where`` stands at its inputs as well: back
    through it comes a zero for each sample that does not take the branch, and no tangent goes in.
    """
    if not (is_inexact(tensor) and is_followed(tensor)):
        return tensor
    return torch.where(taken, tensor, tensor.detach())


def is_followed(tensor: torch.Tensor) -> bool:
    """True if a derivative by ``tensor`` may be taken at some level, or by plain autograd."""
    forward = substrate.dual_level_open()
    while not tensor.requires_grad:
        if not substrate.is_wrapped(tensor):
            return forward and has_tangent(tensor)
        if forward and not substrate.is_batched(tensor):
            return True
        tensor = substrate.unwrapped(tensor)
    return True


def staged(tracer: Tracer, pred: torch.Tensor, branches: Pair, operands: tuple[Any, ...]) -> Any:
    """Both branches in the graph that is being traced."""
    tensors, put = take_tensors(operands)
    with tracer.aside(), Found(tensors, tracer.is_known) as watching:
        found = [called(branch, put(tensors)) for branch in branches]
    output = merged(branches, found, lambda x, y: x)
    if tracer.is_aside():
        return output
    captured = watching.tensors
    likes, restore = take_tensors(output)
    known = [*tensors, *captured]
    flat = partial(flat_branch, put=put, count=len(tensors), known=known)
    both = flat(branches[0]), flat(branches[1])
    choice = Choice(tracer, both, [is_inexact(x) for x in likes])
    return restore(choice.bind(pred, *map(presented, known)))


def called(branch: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """What ``branch`` returns; a captured tensor that it returns as it is, is seen too."""
    return map_tensors(presented, branch(*operands))


def flat_branch(
    branch: Callable[..., Any], put: Put, count: int, known: Sequence[torch.Tensor]
) -> Callable[..., Tensors]:
    """``branch`` as a flat function of its ``count`` tensors, then those that it captures.

    ``known``: the tensors that these are; a branch may capture one that it is given as well.
    """

    def flat(*tensors: torch.Tensor) -> Tensors:
        with Replaced(known, tensors):
            return tuple(take_tensors(called(branch, put(tensors[:count])))[0])

    return flat


def merged(
    branches: Pair, found: Sequence[Any], merge: Callable[[torch.Tensor, torch.Tensor], Any]
) -> Any:
    """One output of two, their tensors put together by ``merge``.

    Raises:
        StructureError: they are not alike.
    """
    (ours, spec), (others, other_spec) = map(flatten, found)
    if spec != other_spec:
        raise StructureError(
            f"{call(branches)}: the branches return different structures. true_fn returns "
            f"{show(spec)} and false_fn {show(other_spec)}{odd_leaf(found)}. Return "
            f"the same from both."
        )
    return spec.unflatten(
        [
            merge(x, y) if is_tensor_like(x, y) else same(branches, found[0], i, x, y)
            for i, (x, y) in enumerate(zip(ours, others))
        ]
    )


def odd_leaf(found: Sequence[Any]) -> str:
    """Which leaf only one of two outputs has."""
    paths = [leaf_paths(tree, "output") for tree in found]
    odd = [path for path in paths[0] + paths[1] if not all(path in one for one in paths)]
    return f"; {odd[0]} is only in one of them" if odd else ""


def is_tensor_like(x: Any, y: Any) -> bool:
    """True for two tensors of one shape and dtype."""
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return False
    return x.shape == y.shape and x.dtype == y.dtype


def same(branches: Pair, output: Any, index: int, x: Any, y: Any) -> Any:
    """A leaf that is no tensor, the same in both outputs."""
    is_tensor = isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor)
    if not is_tensor and type(x) is type(y) and bool(x == y):
        return x
    advice = "Return tensors of one shape and dtype from both branches."
    if not is_tensor:
        advice = "Return it as a tensor (torch.tensor), which may differ between the branches."
    raise StructureError(
        f"{call(branches)}: {leaf_paths(output, 'output')[index]} is {describe(x)} in true_fn and "
        f"{describe(y)} in false_fn. {advice}"
    )
