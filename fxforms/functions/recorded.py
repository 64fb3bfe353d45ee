"""What one call of a combined ``forward`` left on ``ctx``, by reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten, is_atom, leaves, map_leaves, map_tensors
from fxforms.errors import RuleError
from fxforms.functions.context import RuleContext, among, as_tuple, attributes_of, same
from fxforms.functions.derive import Like
from fxforms.functions.draws import drew
from fxforms.functions.unseen import first_hidden, follows, opaque_leaves

_STORAGES = (torch.UntypedStorage, torch.TypedStorage)
_VALUES = (float, complex, np.ndarray, np.number, memoryview, bytes, bytearray, *_STORAGES)


class Ref:
    """A tensor on ``ctx``, by its position among inputs, outputs and residuals in that order."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


reference = cache(Ref)  # one object for a position, so that those of two calls compare equal


class Call:
    """One call of a split Function: what its ``forward`` left on ``ctx``, by reference.

    ``depth`` is the number of levels at the call. A graph at a lower level may have to
    differentiate the residuals; that of the top level never does, unless there is no level at all:
    plain autograd differentiates its own backward pass.
    """

    single = False
    count = 0
    saved: tuple[Ref | None, ...] = ()
    saved_for_forward: tuple[Ref | None, ...] | None = None
    dirty: Sequence[int] = ()
    fixed: Sequence[int] = ()
    materialize = True
    output_likes: tuple[Like | None, ...] = ()
    residual_likes: tuple[Like | None, ...] = ()
    refs: Sequence[Ref] = ()
    direct = False  # what ``ctx`` saved is what ``forward`` saved, in its order
    opaque: Sequence[tuple[str, Any]] = ()
    unseen: str | None = None  # what keeps something out of sight
    drawn: torch.Tensor | None = None  # the generator's state before forward
    samples: Sequence[Call] = ()
    sample_level = 0

    def __init__(self, operands: tuple[Any, ...]) -> None:
        self.attributes: dict[str, Any] = {}
        self.depth = substrate.level_depth()
        self.input_likes = tuple([Like.of(x) for x in operands])

    def split_batch(self, name: str, samples: list[Call], level: int) -> None:
        """Take over the calls of the samples of a batch at vmap ``level``, looped over.

        What ``forward`` left on ``ctx`` beside tensors differs between them.
        """
        first = samples[0]
        if any(sample.saved != first.saved for sample in samples):
            raise RuleError(
                f"{name}.forward saves other tensors for some samples of a batch than for others. "
                f"Give it a vmap rule."
            )
        depth, likes = self.depth, self.input_likes
        vars(self).update(vars(first))
        self.depth, self.input_likes = depth, likes
        self.unseen = next((s.unseen for s in samples if s.unseen), None)
        if any(
            sample.samples
            or drew(first.drawn, sample.drawn)
            or differs(sample.attributes, first.attributes)
            for sample in samples
        ):
            self.samples, self.sample_level = samples, level

    def new_context(self) -> RuleContext:
        """A ``ctx`` for ``forward``: any tensor that can be differentiated may need it."""
        return RuleContext(tuple([like is not None for like in self.input_likes]))

    def may_run_again(self, operands: tuple[Any, ...]) -> bool:
        """True if a graph of a lower level or of plain autograd may differentiate residuals."""
        return self.depth > 1 or any(
            isinstance(x, torch.Tensor) and substrate.unbatched(x).requires_grad for x in operands
        )

    def record(self, ctx: RuleContext, operands: tuple[Any, ...], output: Any) -> tuple[Any, ...]:
        """Take over what ``forward`` left on ``ctx``; returns outputs and residuals."""
        self.single = not isinstance(output, tuple)
        outputs = tuple([apart(x, operands, ctx.dirty_tensors) for x in as_tuple(output)])
        known = [*operands, *outputs]
        self.count = len(outputs)
        if self.count > 1:  # where there is one output, its cotangent is there
            self.output_likes = tuple([Like.of(x) for x in outputs])
        if ctx.non_differentiable:
            self.fixed = [i for i, x in enumerate(outputs) if among(x, ctx.non_differentiable)]
        if ctx.dirty_tensors:
            self.dirty = [i for i, x in enumerate(operands) if among(x, ctx.dirty_tensors)]
        found: dict[Ref, None] = {}

        def refer(tensor: torch.Tensor | None) -> Ref | None:
            if tensor is None:
                return None
            for position, other in enumerate(known):
                if tensor is other and position - len(operands) not in self.fixed:
                    break
            else:
                position = len(known)
                known.append(tensor.view_as(tensor) if among(tensor, outputs) else tensor)
            ref = reference(position)
            found[ref] = None
            return ref

        self.saved = tuple([refer(x) for x in ctx.to_save])
        if ctx.saved_for_forward is not None and not same(ctx.saved_for_forward, ctx.to_save):
            self.saved_for_forward = tuple([refer(x) for x in ctx.saved_for_forward])
        attributes = attributes_of(ctx)
        if attributes:
            self.attributes = {k: map_tensors(refer, v) for k, v in attributes.items()}
            opaque = opaque_leaves(self.attributes, Ref)
            self.opaque = [(k, v) for k, v in opaque if not any(v is x for x in operands)]
            self.unseen = first_hidden(self.opaque)
        self.materialize = ctx.materialize_grads
        self.refs = list(found)
        self.direct = len(found) == len(self.saved) and not attributes
        residuals = known[len(operands) + self.count :]
        if residuals:
            self.residual_likes = tuple([Like.of(x) for x in residuals])
        return (*outputs, *residuals)

    def keeps_values(self) -> bool:
        """True if ``forward`` left numbers or arrays on ``ctx``."""
        return holds_values(self.attributes)

    def saves_no_residual(self) -> bool:
        """True if ``forward`` left only inputs and outputs, by the methods meant for it."""
        return not (
            self.residual_likes
            or self.unseen
            or any(isinstance(leaf, Ref) for leaf in leaves(self.attributes))
        )

    def residuals(self, ctx: Any) -> list[torch.Tensor | None]:
        """Each residual as ``ctx`` has saved it; None for one that is not there."""
        known = dict(zip(self.refs, ctx.saved_tensors))
        start = len(self.input_likes) + self.count
        return [known.get(reference(start + i)) for i in range(len(self.residual_likes))]

    def depending(self, level: int) -> list[str]:
        """The attributes that hide a tensor which grad ``level`` follows."""
        return [name for name, value in self.opaque if follows(value, level)]

    def restore(self, ctx: Any, forward: bool) -> RuleContext:
        """The user's ``ctx`` at the level of ``ctx``, for a jvp rule if ``forward``."""
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[1:]
        if not self.direct or self.samples or (forward and self.saved_for_forward):
            return self.build(dict(zip(self.refs, saved)), needs, forward)
        context = RuleContext(needs)
        context.to_save = saved[: len(self.refs)]
        context._fx_input_likes = self.input_likes
        context.materialize_grads = self.materialize
        return context

    def build(self, lookup: dict[Ref, Any], needs: tuple[bool, ...], forward: bool) -> RuleContext:
        """The user's ``ctx`` with the tensors of ``lookup``."""

        context = RuleContext(needs)
        if self.samples:
            context._fx_samples = self.sample_level, self._contexts(lookup, needs, forward)
        saved = self.saved_for_forward if forward and self.saved_for_forward else self.saved
        context.to_save = tuple([None if ref is None else lookup[ref] for ref in saved])
        context._fx_input_likes = self.input_likes
        context.materialize_grads = self.materialize
        for name, value in self.attributes.items():
            found = map_leaves(lambda x: lookup[x] if isinstance(x, Ref) else x, value)
            setattr(context, name, found)
        return context

    def _contexts(self, lookup: dict[Ref, Any], needs: tuple[bool, ...], forward: bool) -> Any:
        """How to make the ``ctx`` of one sample from the tensors of ``lookup``."""

        def place(index: int | None, put: Callable[[Any], Any]) -> RuleContext:
            call = self if index is None else self.samples[index]
            return call.build({ref: put(x) for ref, x in lookup.items()}, needs, forward)

        return place


def apart(output: Any, operands: tuple[Any, ...], dirty: tuple[torch.Tensor, ...]) -> Any:
    """``output`` as an object of its own, if it is an operand that ``forward`` left as it was."""
    if not isinstance(output, torch.Tensor) or not among(output, operands):
        return output
    return output if among(output, dirty) else output.view_as(output)


def holds_values(attributes: dict[str, Any]) -> bool:
    """True if there are numbers or arrays in ``attributes``."""
    return any(isinstance(leaf, _VALUES) for leaf in leaves(attributes))


def differs(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """True unless the attributes of two samples are known to be the same."""
    flat_a, spec_a = flatten(a)
    flat_b, spec_b = flatten(b)
    same = (
        x is y or ((is_atom(x) or isinstance(x, Ref)) and x == y) for x, y in zip(flat_a, flat_b)
    )
    return spec_a != spec_b or not all(same)


def distinct(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """``operands`` with a tensor that is given twice as two objects, for they are told by identity.

    They may be different tensors at the levels above.
    """
    if len(operands) < 2:
        return operands
    seen: set[int] = set()
    result = []
    for operand in operands:
        if isinstance(operand, torch.Tensor) and id(operand) in seen:
            operand = operand.view_as(operand)
        seen.add(id(operand))
        result.append(operand)
    return tuple(result)
