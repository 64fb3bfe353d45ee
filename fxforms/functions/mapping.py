"""One call of a mapped Function: where its batch is, and what ``setup_context`` left on ``ctx``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms._tree import is_atom, leaves, map_leaves
from fxforms.functions.batch_dims import Dims, batch
from fxforms.functions.context import RuleContext, as_tuple, attributes_of, same
from fxforms.interpreters import VmapInfo


class Mapping:
    """One call of a mapped Function: how its operands are batched, and its outputs.

    ``shapes`` are those of the physical operands. ``shared`` is set if ``forward`` has run the
    user's ``setup_context`` for all levels.
    """

    out_dims: Any = None
    shapes: Sequence[torch.Size | None] = ()
    shared: SharedRecord | None = None
    has_run = False

    def __init__(self, info: VmapInfo, in_dims: Dims) -> None:
        self.info = info
        self.in_dims = in_dims


class Slot:
    """Where in the saved tensors an attribute of ``ctx`` is kept."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Record:
    """What the mapped ``setup_context`` leaves for ``backward`` and ``jvp``.

    Tensors are kept by the real ``ctx``, those of attributes first, so that every level above wraps
    them; here are their batch dims and the attributes without them.
    """

    attribute_count = 0
    backward_dims: Sequence[int | None]
    forward_dims: Sequence[int | None]

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    def restore(
        self, ctx: Any, saved: tuple[Any, ...], dims: Sequence[int | None], level: int
    ) -> RuleContext:
        """The user's ``ctx`` on the batch at ``level``, from the real one and what it saved."""
        tensors = batch(saved, dims, level)
        context = RuleContext(ctx.needs_input_grad[1:], ctx._fx_lowered)
        if not self.attributes:
            context.to_save = tensors
            return context
        context.to_save = tensors[self.attribute_count :]
        for name, value in self.attributes.items():
            restored = map_leaves(lambda x: tensors[x.index] if isinstance(x, Slot) else x, value)
            setattr(context, name, restored)
        return context


class SharedRecord(Record):
    """A record that is the same at every level: all that is saved are inputs and outputs.

    ``places`` are their positions among those, for ``backward`` and for ``jvp``, with the Mapping
    as position 0; -1 is None. ``of_dims`` are the batch dims of the call that it was made for.
    """

    places: Sequence[int]
    forward_places: Sequence[int]
    materialize: bool
    of_dims: tuple[Dims, Any]

    @classmethod
    def of(
        cls, ctx: SetupContext, inputs: Sequence[Any], outputs: tuple[Any, ...], mapping: Mapping
    ) -> SharedRecord | None:
        """What is on ``ctx``; None if there is more than that, or if it depends on the level."""
        attributes = attributes_of(ctx)
        if ctx._fx_asked or ctx.dirty_tensors or ctx.non_differentiable:
            return None
        if attributes and hold_more(attributes):
            return None
        record = cls(attributes)
        record.materialize = ctx.materialize_grads
        record.of_dims = mapping.in_dims, mapping.out_dims
        known = (mapping, *inputs, *outputs)
        dims = (None, *mapping.in_dims, *as_tuple(mapping.out_dims), None)
        saved, forward = ctx.to_save, ctx.saved_for_forward
        try:
            record.places = record.forward_places = places = find(saved, known)
            record.backward_dims = record.forward_dims = [dims[i] for i in places]
            if not (forward is None or same(forward, saved)):
                record.forward_places = places = find(forward, known)
                record.forward_dims = [dims[i] for i in places]
        except LookupError:
            return None
        return record

    def fits(
        self, ctx: SetupContext, inputs: Sequence[Any], outputs: tuple[Any, ...], mapping: Mapping
    ) -> bool:
        """True if ``ctx`` surely holds the same again: the very inputs and outputs, and no more."""
        left, forward = vars(ctx), ctx.saved_for_forward
        if "to_save" not in left or len(left) != (1 if forward is None else 2) or self.attributes:
            return False  # more is left than what is saved
        if not self.materialize or self.of_dims != (mapping.in_dims, mapping.out_dims):
            return False
        known = (mapping, *inputs, *outputs, None)
        twice = known[1] is known[2] if len(known) == 4 else len(set(map(id, known))) < len(known)
        if twice or not placed(ctx.to_save, self.places, known):
            return False
        if forward is None:
            return self.forward_places is self.places
        return placed(forward, self.forward_places, known)

    def save(self, ctx: Any, operands: Sequence[Any], output: Any, forward: bool) -> None:
        """Save the tensors of the level of ``ctx`` on it, those of ``jvp`` too if ``forward``."""
        known = (*operands, *as_tuple(output), None)
        ctx._fx_mapping, ctx._fx_record = operands[0], self
        ctx.save_for_backward(*map(known.__getitem__, self.places))
        if forward:
            ctx.save_for_forward(*map(known.__getitem__, self.forward_places))
        if not self.materialize:
            ctx.set_materialize_grads(False)


class SetupContext(RuleContext):
    """A ``ctx`` that notes if it is asked which inputs need a gradient: levels differ in that."""

    _fx_asked = False
    _fx_needs: tuple[bool, ...] = ()

    __init__ = object.__init__  # nothing is on it: what ``setup_context`` leaves shows at once

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:  # type: ignore[override]
        """As in torch."""
        self._fx_asked = True
        return self._fx_needs


def find(tensors: Sequence[Any], known: Sequence[Any]) -> list[int]:
    """Where each of ``tensors`` is in ``known``, -1 for None.

    Raises LookupError if one is not there, or there twice.
    """
    at = {id(x): place for place, x in enumerate(known)}
    if len(at) < len(known):
        twice = {id(x) for place, x in enumerate(known) if at[id(x)] != place}
        at = {key: place for key, place in at.items() if key not in twice}
    return [-1 if tensor is None else at[id(tensor)] for tensor in tensors]


def placed(tensors: Sequence[Any], places: Sequence[int], known: Sequence[Any]) -> bool:
    """True if ``tensors`` are those at ``places`` of ``known``."""
    if len(tensors) != len(places):
        return False
    for tensor, place in zip(tensors, places):  # noqa: SIM110 (all() takes three times as long)
        if tensor is not known[place]:
            return False
    return True


def hold_more(attributes: dict[str, Any]) -> bool:
    """True if there is more than numbers and the like in what the user has set on ``ctx``."""
    return any(
        not is_atom(leaf) or isinstance(leaf, torch.Tensor)
        for name, value in attributes.items()
        if not name.startswith("_fx_")
        for leaf in leaves(value)
    )
