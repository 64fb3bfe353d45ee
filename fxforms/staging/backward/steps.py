"""A backward pass as a list of steps, in the form in which the engine tells it."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fxforms._tree import leaves, map_leaves


class Kind(enum.Enum):
    """What a step does. All but FORMULA and SUM run Python or C++ that cannot be traced."""

    FORMULA = "the backward formula of a built-in node"
    SUM = "two gradients of one value, summed"
    FUNCTION = "the backward of a Function written in Python"
    CPP_FUNCTION = "the backward of a Function written in C++"
    ACCUMULATE = "AccumulateGrad"
    TENSOR_HOOK = "a hook of a tensor"
    CPP_HOOK = "a hook of a tensor, written in C++"
    PRE_HOOK = "a hook before a node"
    POST_HOOK = "a hook after a node"
    POST_ACCUMULATE_HOOK = "a hook after AccumulateGrad"
    UNPACK = "a saved tensor that a hook had packed"

    @property
    def traceable(self) -> bool:
        """True if the step is made of torch operators alone."""
        return self in (Kind.FORMULA, Kind.SUM)


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """The place of one value of a pass."""

    place: int


@dataclass(eq=False)
class Step:
    """One step: ``target(*args)`` gives one value for each of ``results``.

    ``args`` is a tree with a Slot for each value of the pass. ``call`` numbers the node it is of.
    """

    kind: Kind
    name: str
    target: Callable[..., Any] | None
    args: list[Any]
    results: list[Slot]
    call: int

    @functools.cached_property
    def is_flat(self) -> bool:
        """True if no container is among ``args``, so that no tree need be mapped."""
        return not any(isinstance(x, list | tuple) for x in self.args)

    @property
    def operands(self) -> list[Slot]:
        """The slots that the step reads."""
        return [x for x in leaves(self.args) if isinstance(x, Slot)]

    def given(self, values: list[Any] | dict[int, Any]) -> Any:
        """``args`` with the values of this pass."""
        if self.is_flat:
            return [values[x.place] if type(x) is Slot else x for x in self.args]
        return map_leaves(lambda x: values[x.place] if isinstance(x, Slot) else x, self.args)


@dataclass(eq=False)
class Program:
    """The steps of all passes of one structure.

    ``tensors`` and ``numbers`` are the slots of what a pass is given; ``hooks`` and ``packed``
    those of the Python objects that its steps use, by the engine's index.
    """

    tensors: list[Slot] = field(default_factory=list)
    numbers: list[Slot] = field(default_factory=list)
    hooks: dict[int, Slot] = field(default_factory=dict)
    packed: dict[int, Slot] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    size: int = 0

    def new_slot(self) -> Slot:
        """A place that no value has yet."""
        self.size += 1
        return Slot(self.size - 1)

    def object_slot(self, index: int, packed: bool = False) -> Slot:
        """The place of a hook, or of packed data."""
        places = self.packed if packed else self.hooks
        if index not in places:
            places[index] = self.new_slot()
        return places[index]

    def load(
        self,
        tensors: Sequence[Any],
        sizes: Sequence[int],
        scalars: Sequence[float],
        hooks: Sequence[Any],
        packed: Sequence[Any],
    ) -> list[Any]:
        """The values of a pass before its first step."""
        values: list[Any] = [None] * self.size
        for slot, value in zip(self.tensors + self.numbers, [*tensors, *sizes, *scalars]):
            values[slot.place] = value
        for places, given in ((self.hooks, hooks), (self.packed, packed)):
            for index, slot in places.items():
                values[slot.place] = given[index]
        return values

    def results(self, values: Sequence[Any]) -> list[Any]:
        """The gradients that the pass returns."""
        return [values[x.place] if isinstance(x, Slot) else x for x in self.outputs]

    def last_uses(self) -> Iterator[tuple[Step, list[int]]]:
        """Each step with the places that no later step reads."""
        kept = {x.place for x in self.outputs if isinstance(x, Slot)}
        found: list[tuple[Step, list[int]]] = []
        for step in reversed(self.steps):
            read = {slot.place for slot in step.operands + step.results} - kept
            kept |= read
            found.append((step, sorted(read)))
        return reversed(found)
