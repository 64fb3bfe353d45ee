"""Pytrees in and out of a Function: the Function on the flat tensors of its arguments.

Operand 0 of the packed Function is a Packing. Its rules hand the user's rules the trees and
flatten what they return, so that every tensor in a container is an operand of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, align, broadcast_prefix, flatten, is_atom, show
from fxforms.errors import GradientError, StructureError
from fxforms.functions.context import as_tuple
from fxforms.functions.contract import Rules
from fxforms.functions.once import once_differentiable
from fxforms.interpreters.vmap import check_pair

GIVEN, RETURNED = "was given", "returned"


def has_trees(values: tuple[Any, ...], what: str) -> bool:
    """True if one of ``values``, which a Function ``what``, is a container of tensors."""
    for value in values:
        if not (is_atom(value) or isinstance(value, torch.Tensor)) and holds_tensor(value, what):
            return True
    return False


def holds_tensor(value: Any, what: str) -> bool:
    """True if ``value``, no tensor itself, is a pytree with a tensor in it."""
    leaves = flatten(value)[0]
    refuse_unknown(leaves, what)
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def refuse_unknown(leaves: list[Any], what: str) -> None:
    """Raise StructureError for a dataclass of tensors that torch does not know as a pytree."""
    for leaf in leaves:
        if is_atom(leaf) or isinstance(leaf, type) or not dataclasses.is_dataclass(leaf):
            continue
        fields = [getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)]
        if any(isinstance(x, torch.Tensor) for x in flatten(fields)[0]):
            raise StructureError(
                f"A Function {what} a {type(leaf).__name__}, a dataclass of tensors that torch "
                f"does not know as a pytree. Register it: "
                f"torch.utils._pytree.register_dataclass({type(leaf).__name__})."
            )


class Packing:
    """One call: the structure of its arguments, and of its output once ``forward`` ran."""

    def __init__(self, specs: list[PyTreeSpec]) -> None:
        self.specs = specs
        self.out_spec: PyTreeSpec | None = None
        self.ready: Any = None  # a ContainerFound: the body has run already

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> tuple[Packing, list[Any]]:
        """The packing of ``args`` and their leaves."""
        pairs = [flatten(arg) for arg in args]
        for flat, _ in pairs:
            refuse_unknown(flat, GIVEN)
        return cls([spec for _, spec in pairs]), [leaf for flat, _ in pairs for leaf in flat]

    def take_ready(self) -> Any:
        """The body that has run already, once."""
        ready, self.ready = self.ready, None
        return ready

    def args(self, flat: tuple[Any, ...]) -> tuple[Any, ...]:
        """``flat``, one value a leaf, as the arguments."""
        built, start = [], 0
        for spec in self.specs:
            built.append(spec.unflatten(flat[start : start + spec.num_leaves]))
            start += spec.num_leaves
        return tuple(built)

    def pack_output(self, output: Any) -> tuple[Any, ...]:
        """The leaves of ``output``, whose structure is recorded."""
        flat, self.out_spec = flatten(output)
        refuse_unknown(flat, RETURNED)
        return tuple(flat)

    def output(self, flat: tuple[Any, ...]) -> Any:
        """``flat`` as the output."""
        assert self.out_spec is not None
        return self.out_spec.unflatten(flat)

    def join(self, parts: tuple[Any, ...]) -> Any:
        """What a jvp rule returned, as a tree like the output."""
        assert self.out_spec is not None
        if len(parts) == 1 and (parts[0] is None or self.out_spec.type is not tuple):
            return parts[0]
        return parts

    def output_parts(self, flat: tuple[Any, ...]) -> tuple[Any, ...]:
        """``flat`` as the arguments of ``backward``: one for each member of a tuple output."""
        output = self.output(flat)
        return as_tuple(output)

    def is_flat(self) -> bool:
        """True if the output is a tensor or other leaf, or a tuple of them."""
        assert self.out_spec is not None
        kind = self.out_spec.type
        return kind is None or (
            kind is tuple and all(child.is_leaf() for child in self.out_spec.children())
        )

    def needs(self, flat: tuple[bool, ...]) -> tuple[bool, ...]:
        """``needs_input_grad`` by argument: whether any tensor in it needs one."""
        return tuple([any(flatten(tree)[0]) for tree in self.args(flat)])


class PackedContext:
    """The ``ctx`` of the packed Function as the user's rules see it."""

    def __init__(self, ctx: Any, packing: Packing) -> None:
        self.__dict__["_fx_real"] = ctx
        self.__dict__["_fx_packed"] = packing

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """One for each argument; what the levels can share is not known once this is read."""
        packing: Packing = self._fx_packed
        return packing.needs(self._fx_real.needs_input_grad[1:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fx_real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._fx_real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._fx_real, name)

    def mark_dirty(self, *trees: Any) -> None:
        """Declare inputs that ``forward`` changed in place."""
        self._fx_real.mark_dirty(*flatten(trees)[0])

    def mark_non_differentiable(self, *trees: Any) -> None:
        """Declare outputs that have no derivative."""
        self._fx_real.mark_non_differentiable(*flatten(trees)[0])


def match(
    trees: Any, specs: list[PyTreeSpec], names: list[str], what: str
) -> tuple[torch.Tensor | None, ...]:
    """The leaves of ``trees``, one tree for each of ``specs``, where None stands for all of one."""
    flat: list[torch.Tensor | None] = []
    for tree, spec, name in zip(trees, specs, names):
        leaves = align(tree, spec)
        if leaves is None:
            raise GradientError(
                f"{what} for {name} has structure {show(flatten(tree)[1])}, but {name} has "
                f"{show(spec)}. Return one of the same structure, or None for all of it."
            )
        flat.extend(leaves)
    return tuple(flat)


def packed_class(rules: Rules) -> Any:
    """The Function on flat operands; operand 0 is a Packing."""
    function = rules.function

    def forward(packing: Packing, *flat: Any) -> tuple[Any, ...]:
        if (ready := packing.take_ready()) is not None:
            return packing.pack_output(ready.output)
        return packing.pack_output(function.forward(*packing.args(flat)))

    def forward_combined(ctx: Any, packing: Packing, *flat: Any) -> tuple[Any, ...]:
        ctx._fx_packing = packing
        context = PackedContext(ctx, packing)
        if (ready := packing.take_ready()) is not None:
            return packing.pack_output(ready.take(context))
        return packing.pack_output(function.forward(context, *packing.args(flat)))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        packing = ctx._fx_packing = inputs[0]
        rules.setup_context(
            PackedContext(ctx, packing), packing.args(inputs[1:]), packing.output(output)
        )

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return (None, *packed_backward(rules, ctx, cotangents))

    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        return packed_jvp(rules, ctx, tangents)

    def vmap(info: Any, in_dims: tuple[int | None, ...], packing: Packing, *flat: Any) -> Any:
        return packed_vmap(rules, info, in_dims[1:], packing, flat)

    form: dict[str, Any] = {"forward": forward_combined}
    if not rules.combined:
        form = {"forward": forward, "setup_context": setup_context}
    derived: dict[str, Any] = {
        "backward": once_differentiable(backward) if rules.once else backward,
        "jvp": jvp,
        "vmap": vmap,
    }
    given = {name: method for name, method in derived.items() if getattr(rules, name) is not None}
    return substrate.make_function(
        rules.__name__,
        torch.autograd.Function,
        form | given,
        vmap_method=rules.vmap_method,
        splits_always=rules.splits_always,
    )


def packed_backward(
    rules: Rules, ctx: Any, cotangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """The user's ``backward`` on trees, one gradient for each leaf of the arguments."""
    packing: Packing = ctx._fx_packing
    result = rules.gradients(PackedContext(ctx, packing), packing.output_parts(cotangents))
    names = rules.signature.names(len(packing.specs))
    flat = match(result, packing.specs, names, f"{rules.__name__}.backward: the gradient")
    needs = ctx.needs_input_grad[1:]
    return (
        *[
            g if need or isinstance(g, torch.Tensor) else None  # the place of a number
            for g, need in zip(flat, needs)
        ],
        *[None] * (len(needs) - len(flat)),  # of a token
    )


def packed_jvp(
    rules: Rules, ctx: Any, tangents: tuple[Any, ...]
) -> tuple[torch.Tensor | None, ...]:
    """The user's ``jvp`` on trees, one tangent for each leaf of the output."""
    packing: Packing = ctx._fx_packing
    assert rules.jvp is not None
    assert packing.out_spec is not None
    context = PackedContext(ctx, packing)
    result = packing.join(rules.run_rule(rules.jvp, context, packing.args(tangents)))
    what = f"{rules.__name__}.jvp: the tangent"
    return match([result], [packing.out_spec], ["the output"], what)


def packed_vmap(
    rules: Rules,
    info: Any,
    in_dims: tuple[int | None, ...],
    packing: Packing,
    flat: tuple[Any, ...],
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The user's ``vmap`` on trees: the leaves of the output and their batch dims."""
    assert rules.vmap is not None
    result = rules.vmap(info, packing.args(in_dims), *packing.args(flat))
    check_pair(rules.__name__, substrate.level_depth() + 1, result)
    output, out_dims = result
    leaves = packing.pack_output(output)
    assert packing.out_spec is not None
    dims = broadcast_prefix(out_dims, packing.out_spec, f"{rules.__name__}.vmap", "out_dims")
    return leaves, tuple(dims)
