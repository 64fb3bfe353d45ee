"""``custom_vmap``: a function with a batch rule of its own, as JAX names it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import broadcast_prefix, flatten
from fxforms.errors import RuleError, StructureError, describe, name_of
from fxforms.functions.bind import bind
from fxforms.functions.decorators import positional_signature
from fxforms.functions.packed import Packing
from fxforms.interpreters import Primitive, VmapInfo, jvp_level


class custom_vmap:
    """A function with a batch rule of its own; it is differentiated through its body.

    Args:
        fun: any function of pytrees.

    ``f.def_vmap(rule)``, usable as a decorator, sets ``rule(axis_size, in_batched, *args)``. Each
    argument that is mapped has its batch first; ``in_batched`` says which are, with the structure
    of ``args``. The rule returns ``(output, out_batched)`` in the same way.

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
        functools.update_wrapper(self, fun, updated=())
        self._signature = positional_signature(fun)
        self._primitive = BatchedBy(fun)

    def def_vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the batch rule."""
        self._primitive.rule = rule
        return rule

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A decorated method: the instance is its first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        packing, leaves = Packing.of(bound.args)
        return packing.output(bind(self._primitive, (packing, *leaves)))


class BatchedBy(Primitive):
    """The instance of the operator; operand 0 is a Packing."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun
        self.__name__ = name_of(fun)
        self.rule: Callable[..., Any] | None = None

    def evaluate(self, packing: Packing, *flat: Any) -> tuple[Any, ...]:
        """The function at the level now on top, which differentiates it as it does any other."""
        return packing.pack_output(self.fun(*packing.args(flat)))

    def bind(self, *operands: Any) -> Any:
        """The operator, at the level now on top."""
        return bind(self, operands)

    def grad_rule(self, *operands: Any) -> Any:
        """The body, recorded at the top level."""
        return self.evaluate(*operands)

    def jvp_rule(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """The body and its tangents, at a level of their own."""
        with jvp_level() as level:
            duals: list[Any] = [
                x if t is None else substrate.make_dual(x, t) for x, t in zip(primals, tangents)
            ]
            outputs = self.evaluate(*duals)
            pairs = [split(x, level) for x in outputs]
        return tuple([value for value, _ in pairs]), tuple([tangent for _, tangent in pairs])

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """The user's rule, with every batch in front."""
        if self.rule is None:
            raise RuleError(f"{self.__name__} was mapped before def_vmap gave it a rule.")
        packing, *flat = operands
        dims = in_dims[1:]
        moved = [x if d is None else x.movedim(d, 0) for x, d in zip(flat, dims)]
        batched = packing.args(tuple([d is not None for d in dims]))
        result = self.rule(info.batch_size, batched, *packing.args(tuple(moved)))
        if not (isinstance(result, tuple) and len(result) == 2):
            raise StructureError(
                f"{self.__name__}: the vmap rule must return (output, out_batched), got "
                f"{describe(result)}."
            )
        leaves, spec = flatten(result[0])
        packing.out_spec = spec
        marks = broadcast_prefix(result[1], spec, f"{self.__name__}.def_vmap", "out_batched")
        return tuple(leaves), tuple([0 if mark else None for mark in marks])


def split(value: Any, level: int) -> tuple[Any, torch.Tensor | None]:
    """One output and its tangent, off jvp ``level``."""
    if not isinstance(value, torch.Tensor):
        return value, None
    tangent = substrate.tangent_of(value)
    off = substrate.unwrap_for_grad
    return off(value, level), None if tangent is None else off(tangent, level)
