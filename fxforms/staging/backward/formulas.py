"""The steps that torch operators make up: backward formulas, and sums of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxforms.staging.backward import views
from fxforms.staging.backward.steps import Kind, Slot, Step
from fxforms.staging.graphs import is_mutable


def run_formula(step: Step, args: list[Any]) -> Sequence[Any]:
    """What ``step``, a sum or the formula of a node, makes of ``args``; None is no gradient."""
    if step.kind is Kind.SUM:
        return [add(*args)]
    assert step.target is not None
    own = _OWN.get(step.name)
    found = None if own is None else own(*args)
    if found is not None:
        return found
    result: Sequence[Any] = step.target(*args)
    return result


def trace_backward(grads: Sequence[Any], needs: Any, sizes: Sequence[int]) -> list[Any] | None:
    """The gradient of ``trace``. torch's fills an index, and its batch rule for that is wrong."""
    (grad,) = grads
    return (
        None if grad is None else [grad * torch.eye(*sizes, dtype=grad.dtype, device=grad.device)]
    )


# Formulas that torch's own would not serve every transform; None where torch's is to be used.
_OWN: dict[str, Callable[..., list[Any] | None]] = {
    "AsStridedBackward0": views.as_strided_backward,
    "TraceBackward0": trace_backward,
}


def add(old: torch.Tensor | None, new: torch.Tensor | None) -> torch.Tensor | None:
    """The sum of two gradients of one value."""
    if old is None or new is None:
        return new if old is None else old
    return old + new


@dataclass(eq=False)
class Segment:
    """Traceable steps in a row: the values they read, and those that are read after them."""

    steps: list[Step]
    inputs: list[Slot]
    outputs: list[Slot]

    def run(self, given: Sequence[Any]) -> list[Any]:
        """The values of ``outputs``, from those of ``inputs``."""
        values = {slot.place: value for slot, value in zip(self.inputs, given)}
        for step in self.steps:
            found = run_formula(step, step.given(values))
            values.update((slot.place, value) for slot, value in zip(step.results, found))
        return [values[slot.place] for slot in self.outputs]


def segment(steps: list[Step], later: set[Slot]) -> Segment:
    """``steps`` as a Segment, of whose results those in ``later`` are wanted."""
    made = dict.fromkeys(slot for step in steps for slot in step.results)
    read = dict.fromkeys(slot for step in steps for slot in step.operands)
    return Segment(steps, [x for x in read if x not in made], [x for x in made if x in later])


@dataclass(frozen=True, eq=False)
class Traced:
    """A Segment as a graph of ATen operators.

    ``graph`` takes the tensors among the segment's inputs and returns those among its outputs;
    ``outputs`` are all, with None in the place of each tensor.
    """

    graph: torch.fx.GraphModule
    outputs: list[Any]
    is_tensor: list[bool]


def trace(part: Segment, given: Sequence[Any]) -> Traced:
    """``part`` as a graph, for inputs like ``given``; tensors among them may be fake.

    It has no in-place operator, so that the graph can be mapped and differentiated.
    """
    is_tensor: list[bool] = []
    outputs: list[Any] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feed = iter(tensors)
        full = [next(feed) if isinstance(x, torch.Tensor) else x for x in given]
        found = part.run(full)
        is_tensor[:] = [isinstance(x, torch.Tensor) for x in found]
        outputs[:] = [None if isinstance(x, torch.Tensor) else x for x in found]
        return [x for x in found if isinstance(x, torch.Tensor)]

    tensors = [alike(x) for x in given if isinstance(x, torch.Tensor)]
    graph = make_fx(run, tracing_mode="fake")(*tensors)
    if any(is_mutable(node) for node in graph.graph.nodes):
        functional = torch.func.functionalize(graph, remove="mutations")
        graph = make_fx(functional, tracing_mode="fake")(*[x.detach() for x in tensors])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Traced(graph, outputs, is_tensor)


def alike(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its history. Some formulas ask saved values whether they require grad."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
