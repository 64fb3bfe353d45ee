"""Pytrees in and out of a Function: the Function on the flat tensors of its arguments.

Operand 0 of the packed Function is a Packing. Its rules hand the user's rules the trees and
flatten what they return, so that every tensor in a container is an operand of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, broadcast_prefix, flatten, is_atom, show
from fxforms.errors import GradientError

if TYPE_CHECKING:
    from fxforms.functions.rules import FunctionRules


def has_trees(values: tuple[Any, ...]) -> bool:
    """True if one of ``values`` is a container with a tensor in it."""
    return any(
        not (is_atom(x) or isinstance(x, torch.Tensor))
        and any(isinstance(leaf, torch.Tensor) for leaf in flatten(x)[0])
        for x in values
    )


class Packing:
    """One call: the structure of its arguments, and of its output once ``forward`` ran."""

    def __init__(self, specs: list[PyTreeSpec]) -> None:
        self.specs = specs
        self.out_spec: PyTreeSpec | None = None

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> tuple[Packing, list[Any]]:
        """The packing of ``args`` and their leaves."""
        pairs = [flatten(arg) for arg in args]
        return cls([spec for _, spec in pairs]), [leaf for flat, _ in pairs for leaf in flat]

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
        return tuple(flat)

    def output(self, flat: tuple[Any, ...]) -> Any:
        """``flat`` as the output."""
        assert self.out_spec is not None
        return self.out_spec.unflatten(flat)

    def output_parts(self, flat: tuple[Any, ...]) -> tuple[Any, ...]:
        """``flat`` as the arguments of ``backward``: one for each member of a tuple output."""
        output = self.output(flat)
        return output if isinstance(output, tuple) else (output,)

    def needs(self, flat: tuple[bool, ...]) -> tuple[bool, ...]:
        """``needs_input_grad`` by argument: whether any tensor in it needs one."""
        return tuple([any(flatten(tree)[0]) for tree in self.args(flat)])


class PackedContext:
    """The ``ctx`` of the packed Function as the user's rules see it."""

    def __init__(self, ctx: Any, packing: Packing) -> None:
        self.__dict__["_ctx"] = ctx
        self.__dict__["needs_input_grad"] = packing.needs(ctx.needs_input_grad[1:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)

    def mark_dirty(self, *trees: Any) -> None:
        """Declare inputs that ``forward`` changed in place."""
        self._ctx.mark_dirty(*flatten(trees)[0])

    def mark_non_differentiable(self, *trees: Any) -> None:
        """Declare outputs that have no derivative."""
        self._ctx.mark_non_differentiable(*flatten(trees)[0])


def match(
    trees: Any, specs: list[PyTreeSpec], names: list[str], what: str
) -> tuple[torch.Tensor | None, ...]:
    """The leaves of ``trees``, one tree for each of ``specs``, where None stands for all of one."""
    flat: list[torch.Tensor | None] = []
    for tree, spec, name in zip(trees, specs, names):
        if tree is None:
            flat.extend([None] * spec.num_leaves)
            continue
        leaves, given = flatten(tree)
        if given.num_leaves != spec.num_leaves:
            raise GradientError(
                f"{what} for {name} has structure {show(given)}, but {name} has {show(spec)}. "
                f"Return one of the same structure, or None for all of it."
            )
        flat.extend(leaves)
    return tuple(flat)


def packed_class(rules: FunctionRules) -> Any:
    """The Function on flat operands; operand 0 is a Packing."""
    function = rules.function

    def forward(packing: Packing, *flat: Any) -> tuple[Any, ...]:
        return packing.pack_output(function.forward(*packing.args(flat)))

    def forward_combined(ctx: Any, packing: Packing, *flat: Any) -> tuple[Any, ...]:
        ctx.packing = packing
        context = PackedContext(ctx, packing)
        return packing.pack_output(function.forward(context, *packing.args(flat)))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        packing = ctx.packing = inputs[0]
        rules.setup_context(
            PackedContext(ctx, packing), packing.args(inputs[1:]), packing.output(output)
        )

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        packing: Packing = ctx.packing
        context = PackedContext(ctx, packing)
        result = rules.run_backward(context, packing.output_parts(cotangents))
        return (
            None,
            *match(
                result,
                packing.specs,
                rules.signature.names(len(packing.specs)),
                f"{rules.__name__}.backward: the gradient",
            ),
        )

    def jvp(ctx: Any, _: None, *tangents: Any) -> tuple[Any, ...]:
        assert rules.jvp is not None
        packing: Packing = ctx.packing
        result = rules.jvp(PackedContext(ctx, packing), *packing.args(tangents))
        assert packing.out_spec is not None
        return match(
            [result], [packing.out_spec], ["the output"], f"{rules.__name__}.jvp: the tangent"
        )

    def vmap(info: Any, in_dims: tuple[int | None, ...], packing: Packing, *flat: Any) -> Any:
        assert rules.vmap is not None
        output, out_dims = rules.vmap(info, packing.args(in_dims[1:]), *packing.args(flat))
        leaves = packing.pack_output(output)
        assert packing.out_spec is not None
        dims = broadcast_prefix(out_dims, packing.out_spec, f"{rules.__name__}.vmap", "out_dims")
        return leaves, tuple(dims)

    form: dict[str, Any] = {"forward": forward_combined}
    if not rules.combined:
        form = {"forward": forward, "setup_context": setup_context}
    derived: dict[str, Any] = {"backward": backward, "jvp": jvp, "vmap": vmap}
    given = {name: method for name, method in derived.items() if getattr(rules, name) is not None}
    attributes: dict[str, Any] = {n: staticmethod(method) for n, method in (form | given).items()}
    attributes |= {"vmap_method": rules.vmap_method, "splits_always": rules.splits_always}
    return substrate.make_function(rules.__name__, torch.autograd.Function, attributes)
