"""What a body keeps on ``ctx`` where no level sees it.

A tensor in an object, a set or a closure is not an output of the split Function, and a number has
no derivative at all. A first derivative does not ask for theirs. So the result of ``backward``
passes through :class:`Followed`, which makes it depend on the inputs, and a level that follows that
dependence gets an error instead of a zero.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from fxforms import _substrate as substrate
from fxforms._tree import is_atom, leaves
from fxforms.errors import GradientError
from fxforms.functions.context import as_tuple
from fxforms.functions.derive import Like
from fxforms.functions.opaque import ValueNeeded
from fxforms.interpreters import vmap_level

# What torch says where a body needs the numbers of one sample: NumPy and C code ask for the
# storage, Python control flow and indexing for a value or a shape.
_UNMAPPABLE = (
    "Cannot access data pointer of Tensor",
    "Cannot access storage of",
    "Can't call numpy() on Tensor that requires grad",
    "calling .item() on a Tensor",
    "Tensor in some data-dependent control flow",
    "We do not support batching operators that can",
    "attempting to call Tensor.requires_grad_()",
    "does not require grad and does not have a grad_fn",  # after requires_grad_() on a batch
    "accessing `data` under vmap",
    "Can't detach views in-place",
    "doesn't work on out= or view ops",
    "is not possible because there exists a Tensor",  # it fills a tensor of its own in place
)
Check = Callable[[tuple[Any, ...]], None]
_ATOMS = (int, float, complex, str, bytes, type(None), type, ModuleType, torch.dtype, torch.device)
_MOST = 1000  # values looked into


@functools.cache
def holds_nothing(kind: type) -> bool:
    """True if values of type ``kind`` hold no tensor that a rule could read."""
    return issubclass(kind, _ATOMS)


def hidden_tensors(
    value: Any, more: Callable[[Any], Iterable[Any]] = lambda value: ()
) -> Iterator[torch.Tensor]:
    """The tensors that ``value`` holds, at any depth of objects, containers and closures.

    ``more`` gives what a value holds beside that.
    """
    waiting, seen = [value], set()
    for found in waiting:
        kind: Any = type(found)
        if isinstance(found, torch.Tensor):
            yield found
            alive = substrate.unwrap_if_dead(found)
            if alive is not found:  # a pullback holds those of a level that ended
                yield alive
        elif not (holds_nothing(kind) or id(found) in seen):
            seen.add(id(found))
            if len(seen) < _MOST:
                waiting += held(found)
                waiting += more(found)


def held(value: Any) -> Sequence[Any]:
    """What ``value`` holds; of a function its closure and defaults, not the globals."""
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype == object else ()
    if isinstance(value, FunctionType):
        found = [*closed_over(value), *(value.__defaults__ or ())]
        return [*found, *value.__kwdefaults__.values()] if value.__kwdefaults__ else found
    return gc.get_referents(value)


def closed_over(function: FunctionType) -> list[Any]:
    """What the closure of ``function`` holds, but for names that have no value yet."""
    return [cell.cell_contents for cell in function.__closure__ or () if _is_bound(cell)]


def _is_bound(cell: Any) -> bool:
    """False for the cell of a name that has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def opaque_leaves(attributes: dict[str, Any], known: type) -> list[tuple[str, Any]]:
    """The leaves of what the user set on ``ctx``, with its name, but for atoms and ``known``."""
    return [
        (name, leaf)
        for name, value in attributes.items()
        if not (is_atom(value) or isinstance(value, known) or name.startswith("_fx_"))
        for leaf in leaves(value)
        if not (is_atom(leaf) or isinstance(leaf, known))
    ]


def first_hidden(opaque: list[tuple[str, Any]]) -> str | None:
    """The name of the first value that holds a floating tensor.

    Raises HiddenBatch if that is batched at the level now on top: another level cannot have it.
    """
    found = None
    for name, value in opaque:
        for tensor in hidden_tensors(value):
            if substrate.is_batched(tensor) and substrate.on_vmap_level():
                raise HiddenBatch(f"It keeps a tensor out of sight in ctx.{name}")
            if found is None and Like.of(tensor) is not None:
                found = name
    return found


def follows(value: Any, level: int) -> bool:
    """True if ``value`` holds a tensor that grad ``level`` follows."""
    return any(
        tensor.requires_grad and substrate.level_of(tensor) == level
        for tensor in hidden_tensors(value)
    )


class HiddenBatch(RuntimeError):
    """A tensor of a batch in an object, a set or a closure."""


def is_unmappable(error: RuntimeError) -> bool:
    """True if ``error`` says that a body cannot run on batched tensors."""
    said = error.__cause__ or error  # it may have been said in other words since
    if isinstance(error, (HiddenBatch, ValueNeeded)) or isinstance(said, ValueNeeded):
        return True
    return any(mark in str(said) for mark in _UNMAPPABLE)


VALUES = "numbers and arrays"  # beside the name of an attribute, which this is not


def out_of_sight(name: str, attribute: str) -> GradientError:
    """The error for a derivative of what a body keeps out of sight."""
    if attribute == VALUES:
        return GradientError(
            f"{name}: a second derivative needs the derivative of what forward kept on ctx for "
            f"backward, and forward took it out of torch (NumPy, .item()), so that there are no "
            f"residuals to differentiate. Keep tensors, computed in torch."
        )
    return GradientError(
        f"{name}: a second derivative needs the derivative of a tensor that forward keeps in "
        f"ctx.{attribute}, inside an object, a set or a function, where no level sees it. Save it "
        f"with ctx.save_for_backward, or in a dict, list or tuple on ctx."
    )


class Followed(torch.autograd.Function):
    """The first ``count`` of ``tensors``; ``check`` is asked if a derivative by the rest is wanted.

    ``check`` gets the rest and raises, or tells by returning that there is no dependence. Its own
    derivatives are followed in the same way.
    """

    _rules: Any

    @staticmethod
    def forward(check: Check, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([tensor.view_as(tensor) for tensor in tensors[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.check, ctx.count = inputs[:2]
        ctx.save_for_backward(*inputs[2 + ctx.count :])
        ctx.save_for_forward(*inputs[2 + ctx.count :])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        if any(ctx.needs_input_grad[2 + ctx.count :]):
            ctx.check(ctx.saved_tensors)
        result = follow(cotangents, ctx.saved_tensors, ctx.check)
        return (None, None, *result, *[None] * len(ctx.saved_tensors))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        if any(t is not None for t in tangents[2 + ctx.count :]):
            ctx.check(ctx.saved_tensors)
        return tuple(follow(tangents[2 : 2 + ctx.count], ctx.saved_tensors, ctx.check))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *operands: Any) -> Any:
        check, count, *tensors = operands
        dims = in_dims[2 + count :]

        def mapped(sources: tuple[Any, ...]) -> None:
            with vmap_level(*info) as level:
                add = substrate.add_batch_dim
                check(tuple([x if d is None else add(x, d, level) for x, d in zip(sources, dims)]))

        return Followed._rules.bind(mapped, count, *tensors), in_dims[2 : 2 + count]


def follow(values: Sequence[Any], sources: Sequence[Any], check: Check) -> list[Any]:
    """``values``, made to depend on ``sources``; their derivative by those asks ``check``."""
    given = [value for value in values if value is not None]
    if not given:
        return list(values)
    result = iter(as_tuple(Followed._rules.bind(check, len(given), *given, *sources)))
    return [None if value is None else next(result) for value in values]
