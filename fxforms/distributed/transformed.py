"""What a worker runs for a remote function: the function by its name, under transforms.

A transform is plain data. The list of them is applied innermost first, each to a flat function, of
tensors to a tuple of tensors:

- ``["vmap", in_dims, randomness, batch_size]``: outputs have the batch at dim 0.
- ``["jvp", mask]``: of operands, then tangents of those in ``mask``; to outputs, then tangents of
  the inexact ones.
- ``["vjp", mask]``: of operands, then cotangents of the inexact outputs; to gradients of the
  operands in ``mask``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxforms._tree import flatten
from fxforms.distributed.codec import SLOT, extend
from fxforms.distributed.frame import dense
from fxforms.distributed.registry import operator, register, registered
from fxforms.distributed.repeated_draws import Drawn, operator_draws, run_again, run_first
from fxforms.errors import MessageError, describe
from fxforms.transforms._batch import Batch
from fxforms.transforms.flat import FlatFunction, Tensors, gradients, pushforward
from fxforms.transforms.vmap import check_randomness, run_mapped

Transform = list[Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a tensor in a tree that travels apart from its tensors."""

    index: int


extend(SLOT, Slot, lambda slot: [slot.index], lambda parts: Slot(int(parts[0])))


def split(tree: Any) -> tuple[Any, Tensors]:
    """``tree`` with slots for its tensors, and these; None stands for a tree that is one tensor.

    A tensor that is there twice has one slot, so that it is one tensor on the other side too.
    """
    if isinstance(tree, torch.Tensor):
        return None, (tree,)
    leaves, spec = flatten(tree)
    tensors: dict[int, torch.Tensor] = {}
    slots: dict[int, Slot] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            tensors[id(leaf)] = leaf
            leaves[index] = slots.setdefault(id(leaf), Slot(len(slots)))
    return [spec.unflatten(leaves)], tuple(tensors.values())


def join(tree: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The tree that `split` took apart."""
    if tree is None:
        return tensors[0]
    leaves, spec = flatten(tree[0])
    return spec.unflatten([tensors[x.index] if isinstance(x, Slot) else x for x in leaves])


class Base:
    """A registered function, or an operator, as a flat function.

    Args:
        drawn: what an earlier run of the same call drew, which this one draws again.

    Attributes:
        returned: what it returned last, with slots for tensors.
        drawn: what it drew.
    """

    def __init__(self, name: str, arguments: Any, drawn: Drawn | None) -> None:
        is_operator = name.startswith("aten::")
        self.__name__ = self._name = name
        self._arguments = arguments
        self._function = operator(name) if is_operator else registered(name)
        self._draws = not is_operator or operator_draws(name)
        self.returned: Any = None
        self.drawn = drawn

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """The tensors that the function returns for these."""
        if self.drawn is not None:
            output = run_again(lambda: self._output(tensors), self.drawn, self._name)
        elif self._draws:
            output, self.drawn = run_first(lambda: self._output(tensors))
        else:
            output = self._output(tensors)
        self.returned, outputs = split(output)
        return outputs

    def _output(self, tensors: Sequence[torch.Tensor]) -> Any:
        if self._arguments is None:
            return self._function(*tensors)
        args, kwargs = join(self._arguments, tensors)
        return self._function(*args, **kwargs)


def apply_all(function: FlatFunction, transforms: Sequence[Transform]) -> FlatFunction:
    """``function`` under ``transforms``."""
    for kind, *parameters in transforms:
        transform = _TRANSFORMS.get(kind)
        if transform is None:
            raise MessageError(f"{kind!r} is no transform of remote functions.")
        function = transform(function, *parameters)
    return function


def _mapped(
    function: FlatFunction, in_dims: list[int | None], randomness: str, batch_size: int
) -> FlatFunction:
    check_randomness(function, randomness)

    def mapped(*operands: torch.Tensor) -> Tensors:
        for operand, dim in zip(operands, in_dims):
            if dim is not None and operand.shape[dim] != batch_size:
                raise MessageError(f"The batch dim of {describe(operand)} is not {batch_size}.")
        batch = Batch(list(operands), in_dims, None, batch_size)
        outputs: Tensors = run_mapped(function, batch, 0, randomness, {})
        return outputs

    return mapped


def _pullback(function: FlatFunction, mask: list[bool]) -> FlatFunction:
    def of_copies(*operands: torch.Tensor) -> Tensors:
        """The function may change its arguments in place, which torch allows no leaf of a graph."""
        return function(*[x.clone() if moves else x for x, moves in zip(operands, mask)])

    both = gradients(of_copies, mask)

    def pullback(*operands: torch.Tensor) -> Tensors:
        _, found = both(operands[: len(mask)], operands[len(mask) :])
        return tuple([dense(x) for x in found])

    return pullback


_TRANSFORMS: dict[str, Callable[..., FlatFunction]] = {
    "vmap": _mapped,
    "jvp": pushforward,
    "vjp": _pullback,
}


@register
def evaluate_operator(
    name: str,
    arguments: Any,
    drawn: Drawn | None,
    transforms: list[Transform],
    *tensors: torch.Tensor,
) -> tuple[Any, Drawn | None, Tensors]:
    """As `evaluate`, for an operator alone; `fxforms.distributed.short` knows it."""
    operator(name)
    return evaluate(name, arguments, drawn, transforms, *tensors)


@register
def evaluate(
    name: str,
    arguments: Any,
    drawn: Drawn | None,
    transforms: list[Transform],
    *tensors: torch.Tensor,
) -> tuple[Any, Drawn | None, Tensors]:
    """Run a function under transforms; what it returned and drew, and its output tensors."""
    base = Base(name, arguments, drawn)
    outputs = apply_all(base, transforms)(*tensors)
    return base.returned, base.drawn, outputs
