"""``custom_vmap``: a function with a batch rule of its own, as JAX names it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from fxforms import _substrate as substrate
from fxforms._tree import broadcast_prefix
from fxforms.errors import RuleError, StructureError, describe, name_of
from fxforms.functions.batched import BatchedBy
from fxforms.functions.closures import check_closures
from fxforms.functions.decorators import bound_arguments, positional_signature
from fxforms.functions.packed import Packing
from fxforms.interpreters import VmapInfo
from fxforms.interpreters.levels import VMAP


class custom_vmap:
    """A function with a batch rule of its own; body and rule are differentiated through.

    Args:
        fun: any function of pytrees.

    ``f.def_vmap(rule)``, usable as a decorator, sets ``rule(axis_size, in_batched, *args)``. Each
    argument that is mapped has its batch first; ``in_batched`` says which are, with the structure
    of ``args``. The rule returns ``(output, out_batched)`` in the same way. It serves every
    ``vmap``, also one around a derivative, which is then that of the rule.

    Raises:
        RuleError: mapped before ``def_vmap``.
        StructureError: the rule returns anything else.

    Reference:
        ``jax.custom_batching.custom_vmap``.

    Example:
        >>> import torch, fxforms
        >>> @fxforms.custom_vmap
        ... def total(x):
        ...     return x.sum()
        >>> @total.def_vmap
        ... def rule(axis_size, in_batched, x):
        ...     return x.sum(1), True
        >>> fxforms.vmap(total)(torch.ones(2, 3))
        tensor([3., 3.])
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self._signature = positional_signature(fun, "custom_vmap")
        functools.update_wrapper(self, fun, updated=())
        self._primitive = RuledBatch(fun)

    def def_vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the batch rule."""
        self._primitive.rule = rule
        return rule

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A decorated method: the instance is its first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fun = self._primitive.fun
        if substrate.transforms_active() and VMAP in substrate.level_transforms():
            check_closures(self._primitive.__name__, [fun, self._primitive.rule])
        packing, leaves = Packing.of(bound_arguments(fun, self._signature, args, kwargs))
        return packing.output(self._primitive.bind(packing, *leaves))


class RuledBatch(BatchedBy):
    """The function and the user's rule; operand 0 is a Packing."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun
        self.__name__ = name_of(fun)
        self.rule: Callable[..., Any] | None = None

    def evaluate(self, *operands: Any) -> tuple[Any, ...]:
        packing, *flat = operands
        return packing.pack_output(self.fun(*packing.args(tuple(flat))))  # type: ignore[no-any-return]

    def batched(
        self, info: VmapInfo, flags: tuple[bool, ...], operands: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        if self.rule is None:
            raise RuleError(f"{self.__name__} was mapped before def_vmap gave it a rule.")
        packing: Packing = operands[0]
        result = self.rule(info.batch_size, packing.args(flags[1:]), *packing.args(operands[1:]))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise StructureError(
                f"{self.__name__}: the vmap rule must return (output, out_batched), got "
                f"{describe(result)}."
            )
        leaves = packing.pack_output(result[0])
        assert packing.out_spec is not None
        where = f"{self.__name__}.def_vmap"
        marks = broadcast_prefix(result[1], packing.out_spec, where, "out_batched")
        return leaves, tuple([bool(mark) for mark in marks])
