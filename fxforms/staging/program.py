"""A staged function: one graph for tensors of one signature, and what each transform makes of it.

NOTE [staged derivatives]

A graph holds what ran, not the rules of the Functions that ran. So no transform is taken of a graph
that may be differentiated: the *function* is traced again under the transform, where its rules are
used. Where nothing below differentiates, one joint graph of outputs and gradients is cut in two by
functorch's min-cut partitioner, and the backward part gets the residuals it chose. Where a lower
level differentiates too, the backward pass is a staged function of inputs and cotangents that
computes the forward pass anew, so it has exact derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from fxforms.errors import translate
from fxforms.functions.bind import bind
from fxforms.functions.inline import recorded
from fxforms.interpreters import Primitive
from fxforms.staging.branches import runnable
from fxforms.staging.changes import CapturedTraced
from fxforms.staging.derivatives import NoParts, flat, joint_parts, mapped, pullback
from fxforms.staging.draws import draws
from fxforms.staging.locks import Lock
from fxforms.staging.nodes import apply_at_level, apply_plain
from fxforms.staging.trace import Executable, Traced, trace
from fxforms.staging.watch import with_place
from fxforms.transforms.flat import FlatFunction, is_inexact, pushforward

MAX_DERIVED = 64
_keeping = Lock()


class Program(Primitive):
    """A flat function of tensors, traced; an instance of the operator.

    Attributes:
        function: the flat function; None for a part of a cut graph, which is not differentiated.
        traced: its graph.
        executable: runs the graph, compiled once that is ready.
    """

    def __init__(
        self, name: str, function: FlatFunction | None, traced: Traced, start: Callable[..., None]
    ) -> None:
        """``start(program)`` has it compiled, at its first run."""
        self.__name__ = name
        self.function = function
        self.traced = traced
        self._start = start
        self.compiled_in: float | None = None
        self._derived: dict[Any, Any] = {}
        self.executable: Executable = self._run_first

    @classmethod
    def of(
        cls,
        name: str,
        function: FlatFunction,
        examples: Sequence[torch.Tensor],
        start: Callable[..., None],
        dynamic: bool = False,
    ) -> Program:
        """``function`` traced at the signature of ``examples``."""
        try:
            traced = trace(function, examples, dynamic)
        except RuntimeError as error:
            translate(error, f"jit of {name}")
            placed = with_place(name, error)
            if placed is not None:
                raise placed from error
            raise
        return cls(name, function, traced, start)

    @cached_property
    def layouts(self) -> list[tuple[int, ...]]:
        """The strides of the tensors that the graph takes."""
        return [x.stride() for x in self.traced.input_examples()]

    @cached_property
    def draws(self) -> bool:
        """True if the graph draws random numbers."""
        return draws(self.traced.graph)

    @cached_property
    def interpreted(self) -> Executable:
        """The graph run operator by operator."""
        forward = runnable(self.traced.graph).forward
        return lambda operands: forward(*operands)

    def _run_first(self, operands: list[Any]) -> Sequence[Any]:
        self.executable = self.interpreted
        self._start(self)
        return self.executable(operands)

    def run(self, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The graph on plain tensors, the captured ones among them; nothing is recorded."""
        return tuple(self.executable(list(operands)))

    def evaluate(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The body with no level active."""
        everything = (*operands, *self.traced.captured)
        if self.function is None:
            return self.run(tuple(map(laid_out, everything, self.layouts)))
        if recorded(everything):
            return apply_plain(self, operands)
        return self.run(everything)

    def bind(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The operator, at the level now on top."""
        result: tuple[torch.Tensor, ...] = bind(self, operands)
        return result

    def grad_rule(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A node of the top level's graph, with staged forward and backward."""
        return apply_at_level(self, operands)

    def jvp_rule(
        self, primals: tuple[torch.Tensor, ...], tangents: tuple[torch.Tensor | None, ...]
    ) -> tuple[Any, Any]:
        """One staged function of primals and tangents."""
        mask = tuple([t is not None for t in tangents])
        given = [t for t in tangents if t is not None]
        child = self.derived(("jvp", mask), pushforward(flat(self), mask), (*primals, *given))
        results = child.bind(*primals, *given)
        outputs = results[: self.traced.outputs]
        moving = iter(results[self.traced.outputs :])
        return outputs, tuple([next(moving) if is_inexact(x) else None for x in outputs])

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: tuple[torch.Tensor, ...]
    ) -> tuple[Any, Any]:
        """The staged function of the whole batch."""
        key = ("vmap", in_dims, info)
        child = self.derived(key, mapped(self, info, in_dims), operands)
        return child.bind(*operands)[: self.traced.outputs], 0

    def derived(
        self, key: Any, function: FlatFunction, operands: Sequence[torch.Tensor]
    ) -> Program:
        """The program of ``function``, which is ``key`` of this one, for tensors like these."""
        key = (key, *map(layout, operands))
        found = self._derived.get(key)
        if found is None:
            name = f"{self.__name__}.{key[0][0]}"
            found = self._keep(key, Program.of(name, function, operands, self._start))
        program: Program = found
        return program

    def parts(
        self,
        mask: tuple[bool, ...],
        wanted: tuple[bool, ...] | None,
        operands: Sequence[torch.Tensor],
    ) -> Any:
        """Staged forward and backward passes for gradients of the operands in ``mask``.

        ``wanted``: the captured tensors that plain autograd follows at this call; None at a level.
        """
        key = ("parts", mask, wanted, *map(layout, operands))
        found = self._derived.get(key)
        if found is None:
            try:
                made: Any = joint_parts(self, mask, wanted, operands)
            except CapturedTraced:
                raise
            except Exception as error:  # as in eager, the forward pass does without a derivative
                error.__cause__ = error.__context__ = None  # their frames hold the user's tensors
                made = NoParts(error.with_traceback(None))
            found = self._keep(key, made)
        return found

    def pullback(
        self,
        mask: tuple[bool, ...],
        wanted: tuple[bool, ...] | None,
        operands: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Gradients as a function of inputs and cotangents, differentiable again."""
        everything = (*operands, *cotangents)
        key = ("pullback", mask, wanted)
        child = self.derived(key, pullback(self, mask, wanted), everything)
        return child.bind(*everything)

    def order_of_writes(self, written: Sequence[torch.Tensor]) -> list[int]:
        """Where among ``written`` each captured tensor stands that this program changes."""
        captured = self.traced.captured
        first = len(self.traced.input_examples()) - len(captured)
        targets = [captured[i - first] for i in self.traced.written]
        return [next(i for i, x in enumerate(written) if x is target) for target in targets]

    def part(self, name: str, traced: Traced) -> Program:
        """A part of this program's joint graph."""
        return Program(f"{self.__name__}.{name}", None, traced, self._start)

    def _keep(self, key: Any, value: Any) -> Any:
        """``value``, remembered; the oldest is dropped beyond a bound."""
        with _keeping:
            while len(self._derived) >= MAX_DERIVED:
                self._derived.pop(next(iter(self._derived)))
            return self._derived.setdefault(key, value)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph depends on."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``tensor`` with these strides; a cotangent may come with others than were traced."""
    if tensor.stride() == strides:
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)
