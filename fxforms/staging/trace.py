"""Tracing: a flat function of tensors as a functional graph of ATen operators."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxforms import _substrate as substrate
from fxforms.errors import TraceError
from fxforms.functions.opaque import ValueNeeded
from fxforms.interpreters import below_all_levels, vmap_level
from fxforms.staging import fake
from fxforms.staging.changes import form, refuse_reshaped, turned
from fxforms.staging.graphs import all_nodes, examples_of, inputs_of, is_mutable, output_of
from fxforms.staging.identity import fold_identities
from fxforms.staging.lift import Lift
from fxforms.staging.opaque import Recording
from fxforms.staging.simplify import drop_zero_tangents
from fxforms.staging.stand_ins import holds_gradient
from fxforms.staging.watch import PerhapsCaptured, TraceWatch

_aten = torch.ops.aten

Executable = Callable[[list[Any]], Sequence[Any]]


@dataclass
class Traced:
    """A graph and what its caller must know of it.

    Attributes:
        graph: takes the tensors of the call, then ``captured``; returns the outputs, then the
            tokens, then the new values of what ``written`` names.
        captured: tensors the function reads that are not its arguments; references, not copies.
        outputs: how many outputs the function has.
        returned: for each output the index of the operand that it is, None where it is a new one.
        tokens: how many outputs stand for calls that are made for their effect alone.
        written: the indices of the operands that the function changed in place.
        bodies: the opaque bodies that the graph calls, which live as long as this.
        recorded: how many operators were recorded, before simplification.
        seconds: how long it took to trace.
        serves: where sizes are symbols, whether the graph serves tensors of other sizes.
        turned: the operands whose ``requires_grad`` the function sets, and to what.
        gradients: the captured tensors whose ``.grad`` the function reads.
        asked: those of which it reads anything; ``captured`` has those whose numbers it reads.
    """

    graph: GraphModule
    captured: list[torch.Tensor]
    outputs: int
    returned: list[int | None]
    tokens: int = 0
    written: list[int] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    serves: Callable[[Sequence[torch.Tensor]], bool] | None = None
    recorded: int = 0
    seconds: float = 0.0
    turned: dict[int, bool] = field(default_factory=dict)
    gradients: list[torch.Tensor] = field(default_factory=list)
    asked: list[torch.Tensor] = field(default_factory=list)

    def operators(self) -> list[str]:
        """The name of each operator in the graph."""
        calls = [node for node in self.graph.graph.nodes if node.op == "call_function"]
        return [str(getattr(node.target, "_opname", node.name)) for node in calls]

    @classmethod
    def of_part(cls, graph: GraphModule, captured: list[torch.Tensor], bodies: list[Any]) -> Traced:
        """A part of a joint graph, all of whose outputs count as such."""
        outputs = len(output_of(graph).args[0])
        return cls(graph, captured, outputs, [None] * outputs, bodies=bodies)

    def written_values(self, results: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Among the results of the graph, the new values of what is written."""
        return results[self.outputs + self.tokens :]

    def input_examples(self) -> list[torch.Tensor]:
        """The fake tensors that the graph was traced on, the captured ones included."""
        return examples_of(self.graph)

    def output_examples(self) -> list[torch.Tensor]:
        """The fake outputs, without the new values of what is written."""
        last = output_of(self.graph)
        return [node.meta["val"] for node in last.args[0][: self.outputs]]


def trace(
    function: Callable[..., tuple[torch.Tensor, ...]],
    examples: Sequence[torch.Tensor],
    dynamic: bool = False,
) -> Traced:
    """``function`` traced on fake tensors like ``examples``; nothing of it runs on real ones.

    Raises:
        TraceError: it needs a value that a traced tensor does not have.
    """
    try:
        return _trace(function, examples, dynamic, exact=False)
    except PerhapsCaptured:
        return _trace(function, examples, dynamic, exact=True)
    except ValueNeeded as error:  # by no body that could become a call of the graph
        raise TraceError(str(error)) from error


def _trace(
    function: Callable[..., tuple[torch.Tensor, ...]],
    examples: Sequence[torch.Tensor],
    dynamic: bool,
    exact: bool,
) -> Traced:
    """``exact``: with levels in the place of the caller's, so that those inside have other numbers.

    A custom Function of torch may not be called in them, as it needs a ``vmap`` rule then.
    """
    started, depth = time.perf_counter(), substrate.level_depth()
    mode = fake.new_mode(dynamic)
    returned: list[int | None] = []
    lift, recording = Lift(mode), Recording()
    watch = TraceWatch(depth, exact)
    flags: dict[int, bool] = {}

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        forms, before = list(map(form, tensors)), [x.requires_grad for x in tensors]
        watch.attributes.arguments = tensors
        with recording, lift, stand_in_levels(depth if exact else 0), watch:
            outputs = function(*tensors)
        refuse_reshaped(tensors, forms, "an argument")
        flags.update(turned(tensors, before))
        results = [lift.input_for(x) for x in (*outputs, *recording.tokens)]
        returned.extend([position(out, [*tensors, *lift.captured]) for out in outputs])
        return tuple([x.detach() if x.requires_grad else x for x in results])

    with contextlib.ExitStack() as stack:
        stack.enter_context(below_all_levels())
        stack.enter_context(fake.tracer_lock)
        stack.enter_context(outside_inference_mode())
        stack.callback(lift.put_back_gradients)
        fakes = [fake.fake_like(mode, x) for x in examples]
        graph = fake.record(run, fakes, mode=mode)
        refuse_left_gradients([*lift.captured, *fakes])
        refuse_reshaped(lift.inputs, lift.forms, "a captured tensor")
        added = [x for x in lift.captured if holds_gradient(x, lift.captured)]  # to, by .backward()
        recorded = count_calls(graph)
        graph = fold_identities(drop_zero_tangents(graph))
        if any(map(is_mutable, all_nodes(graph))):
            graph = functionalized(graph)
        return_undetached(graph)
        written = take_writes(graph)
    sweep(graph, bool(recording.bodies))
    return Traced(
        graph,
        lift.captured,
        len(returned),
        returned,
        len(recording.tokens),
        written,
        recording.bodies,
        fake.sizes_guard(fakes) if dynamic else None,
        recorded,
        time.perf_counter() - started,
        flags,
        [*watch.attributes.gradients, *added],
        list(watch.attributes.asked.values()),
    )


def refuse_left_gradients(captured: Sequence[torch.Tensor]) -> None:
    """Raise TraceError if ``.backward()`` inside has left a traced tensor in a ``.grad``."""
    left = [x for x in captured if x.is_leaf and fake.is_fake(x.grad)]
    if left:
        raise TraceError(
            f"jit: .backward() inside the function leaves a traced tensor in the .grad of a "
            f"captured tensor of shape {tuple(left[0].shape)}. Take the gradients by fxforms.grad "
            f"or torch.autograd.grad and return them, or call .backward() on what jit returns."
        )


def count_calls(graph: GraphModule) -> int:
    """How many operators ``graph`` calls."""
    return sum(node.op == "call_function" for node in graph.graph.nodes)


def position(tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> int | None:
    """Where ``tensor`` itself stands among ``tensors``."""
    return next((i for i, x in enumerate(tensors) if x is tensor), None)


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, whose tensors no transform takes; recording stays off."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def stand_in_levels(depth: int) -> Iterator[None]:
    """As many levels as the caller has, so that a tensor of one of those is known by its number."""
    with contextlib.ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(vmap_level(1, "same"))
        yield


def functionalized(graph: GraphModule) -> GraphModule:
    """``graph`` without writes but for those to its inputs, which come last."""
    inputs = [x.detach() for x in examples_of(graph)]
    return fake.record(torch.func.functionalize(graph, remove="mutations"), inputs)


def return_undetached(graph: GraphModule) -> None:
    """Return what is computed itself: nothing records where a graph runs.

    The vmap of ``torch.autograd.grad(is_grads_batched=True)`` has no rule for ``detach``.
    """
    output = output_of(graph)
    results = list(output.args[0])
    for i, node in enumerate(results):
        source = node.args[0] if node.target is _aten.detach.default else None
        if source is not None and source.op == "call_function" and source not in results:
            results[i] = source
    output.args = (tuple(results),)
    graph.graph.eliminate_dead_code()


def take_writes(graph: GraphModule) -> list[int]:
    """Turn the writes to inputs at the end of ``graph`` into outputs; returns which inputs."""
    inputs, output = inputs_of(graph), output_of(graph)
    values: dict[int, Node] = {}
    for node in list(graph.graph.nodes):
        if node.target is _aten.copy_.default and node.args[0] in inputs:
            values[inputs.index(node.args[0])] = node.args[1]
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    output.args = ((*output.args[0], *values.values()),)
    return list(values)


_IDLE = {"aten.is_same_size.default", "aten._has_same_storage_numel.default"}


def sweep(graph: GraphModule, abandoned: bool) -> None:
    """Drop what no output needs.

    ``abandoned``: a body was begun before it became a call, so a draw that nothing uses is its own.
    """
    for node in reversed(list(graph.graph.nodes)):
        idle = str(node.target) in _IDLE or (abandoned and node.op == "call_function")
        if idle and not node.users and getattr(node.target, "namespace", "") == "aten":
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
