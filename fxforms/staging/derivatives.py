"""The flat functions that a staged function becomes under each transform."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from fxforms import _substrate as substrate
from fxforms.staging import fake
from fxforms.staging.branches import at_levels
from fxforms.staging.cut import cut, gather_effects, name_inputs, unused
from fxforms.staging.stand_ins import StandIns, without_hooks
from fxforms.staging.trace import Traced, trace
from fxforms.transforms import vmap
from fxforms.transforms.flat import FlatFunction, Tensors, gradients, is_inexact


class Source(Protocol):
    """What is asked of the program that is transformed."""

    function: FlatFunction | None
    traced: Traced

    def part(self, name: str, traced: Traced) -> Any:
        """A program of a part of the joint graph."""


def flat(program: Source) -> FlatFunction:
    """The function of ``program``, or its graph where it has no rules of its own to use."""
    if program.function is not None:
        return program.function
    graph, captured = program.traced.graph, program.traced.captured
    return lambda *operands: tuple(at_levels(graph, (*operands, *captured)))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """An example for the cotangent of ``tensor``, which is not expanded where that is."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor


def mapped(program: Source, info: Any, in_dims: tuple[int | None, ...]) -> FlatFunction:
    """The function of the whole batch, its outputs batched along dim 0."""
    return vmap(flat(program), in_dims=in_dims, randomness=info.randomness)


def both_of(
    program: Source,
    mask: tuple[bool, ...],
    wanted: tuple[bool, ...] | None,
    sources: list[set[int]] | None = None,
) -> Any:
    """``(outputs, gradients)`` from the inputs and the cotangents of the inexact outputs.

    ``wanted``: which captured tensors plain autograd follows; their gradients come after those of
    the inputs in ``mask``. None: gradients as a grad level takes them.

    ``sources`` is given, for each gradient that plain autograd takes, the inexact outputs that it
    comes from.
    """
    if wanted is None:
        return gradients(flat(program), mask)
    return _plain_gradients(program, mask, wanted, [] if sources is None else sources)


def _plain_gradients(
    program: Source, mask: tuple[bool, ...], wanted: tuple[bool, ...], sources: list[set[int]]
) -> Any:
    function = flat(program)

    def both(primals: Tensors, cotangents: Tensors) -> tuple[Tensors, Tensors]:
        with torch.enable_grad():
            inputs = [_leaf(x) if is_chosen else x for x, is_chosen in zip(primals, mask)]
            followed = list(itertools.compress(program.traced.captured, wanted))
            stand_ins = StandIns(followed, program.traced.captured)
            with stand_ins:
                outputs = function(*inputs)
            inexact = [x for x in outputs if is_inexact(x)]
            reached = [edges_behind(x) if x.requires_grad else set() for x in inexact]
            places = [[x] for x in itertools.compress(inputs, mask)]
            for tensor, leaf in zip(followed, stand_ins.leaves):
                direct = tensor.requires_grad and any(edge_of(tensor) in x for x in reached)
                places.append([leaf, tensor] if direct else [leaf])
            recorded = [(x, ct) for x, ct in zip(inexact, cotangents) if x.requires_grad]
            with without_hooks([tensor for place in places for tensor in place[1:]]):
                found = _summed(recorded, places)
        sources[:] = [
            {i for i, behind in enumerate(reached) if any(edge_of(x) in behind for x in place)}
            if g is not None
            else set()
            for place, g in zip(places, found)
        ]
        return outputs, tuple(
            [torch.zeros_like(x) if g is None else g for g, (x, *_) in zip(found, places)]
        )

    return both


def _summed(
    recorded: Sequence[tuple[torch.Tensor, torch.Tensor]], places: Sequence[list[torch.Tensor]]
) -> list[torch.Tensor | None]:
    """For each of ``places``, the sum of the gradients that reach its tensors."""
    if not recorded:
        return [None] * len(places)
    outputs, cotangents = zip(*recorded)
    wanted = [x for place in places for x in place]
    found = iter(substrate.run_backward(outputs, cotangents, wanted, True, True))
    taken = [[g for _, g in zip(place, found) if g is not None] for place in places]
    return [functools.reduce(torch.add, some) if some else None for some in taken]


Edge = tuple[Any, int]


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where a gradient of ``tensor`` itself arrives in the graph of plain autograd."""
    with fake.DisableTorchFunction():  # else of what an outer trace has in its place
        edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def edges_behind(tensor: torch.Tensor) -> set[Edge]:
    """Every place of the graph that a gradient of ``tensor`` passes through."""
    waiting = [edge_of(tensor)]
    seen: set[Edge] = set(waiting)
    visited: set[Any] = set()
    while waiting:
        node = waiting.pop()[0]
        if node not in visited:
            visited.add(node)
            onward = [(x, place) for x, place in node.next_functions if x is not None]
            seen.update(onward)
            waiting += onward
    return seen


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def pullback(
    program: Source, mask: tuple[bool, ...], wanted: tuple[bool, ...] | None
) -> FlatFunction:
    """The gradients alone, as a flat function of inputs and cotangents."""
    both = both_of(program, mask, wanted)
    return lambda *operands: tuple(both(operands[: len(mask)], operands[len(mask) :])[1])


class Parts(NamedTuple):
    """A joint graph of outputs and gradients, cut in two.

    Attributes:
        forward: gives the outputs, the tokens, the new values of ``written``, and the residuals.
        backward: takes the residuals and the cotangents of the inexact outputs.
        written: the captured tensors that the function changes.
        differentiable: for each output, whether a gradient depends on it.
        sources: for each gradient of plain autograd, the inexact outputs that it comes from. One
            that no cotangent reaches is None, as in eager.
    """

    forward: Any
    backward: Any
    tokens: int
    written: list[torch.Tensor]
    differentiable: list[bool]
    sources: list[set[int]]


class NoParts(NamedTuple):
    """In the place of Parts where the derivative cannot be traced; ``error`` says why."""

    error: Exception


def joint_parts(
    program: Source,
    mask: tuple[bool, ...],
    wanted: tuple[bool, ...] | None,
    operands: Sequence[torch.Tensor],
) -> Parts:
    """Trace outputs and gradients together, and cut where the least is kept."""
    sources: list[set[int]] = []
    both = both_of(program, mask, wanted, sources)
    like = [dense(x) for x in program.traced.output_examples() if is_inexact(x)]
    count, inputs = program.traced.outputs, len(mask)

    def joint(*args: torch.Tensor) -> Tensors:
        outputs, found = both(args[:inputs], args[inputs:])
        return (*outputs, *found)

    traced = trace(joint, [*operands, *like])
    name_inputs(traced.graph, inputs, len(like))
    effects = gather_effects(traced, count)
    idle = iter(unused(traced.graph, inputs, len(like)))
    differentiable = [is_inexact(x) and not next(idle) for x in program.traced.output_examples()]
    forward, backward = cut(traced.graph, count + effects)
    return Parts(
        program.part("forward", Traced.of_part(forward, traced.captured, traced.bodies)),
        program.part("backward", Traced.of_part(backward, [], traced.bodies)),
        traced.tokens,
        [traced.captured[i - inputs - len(like)] for i in traced.written],
        differentiable,
        sources,
    )
