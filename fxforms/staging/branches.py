"""A choice between two branches as one node of a graph: torch's own ``cond`` operator.

Each branch is traced to a graph of its own. What it uses of the graph around becomes an input of
it, and both take the same inputs. Outputs are in memory of their own and of one layout, as the
operator asks.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter

from fxforms import _substrate as substrate
from fxforms.control import cond
from fxforms.errors import TraceError
from fxforms.staging import fake
from fxforms.staging.draws import is_draw
from fxforms.staging.graphs import all_nodes, examples_of, inputs_of, is_mutable
from fxforms.staging.identity import fold_identities
from fxforms.staging.lift import PartLift
from fxforms.staging.opaque import Recording, recording, stage_call
from fxforms.staging.simplify import CHOICE, drop_zero_tangents, written

Tensors = tuple[torch.Tensor, ...]
FlatFunction = Callable[..., Tensors]


class Branch:
    """A flat function as a graph in the one that is being recorded.

    Attributes:
        captured: the tensors that the graph takes after the operands.
        outputs: the fake tensors that it returns, the tokens not among them.
        tokens: how many of its calls are made for their effect.
    """

    def __init__(self, function: FlatFunction, operands: Sequence[torch.Tensor]) -> None:
        lift, own = PartLift(fake.mode_of(operands)), Recording()

        def run(*tensors: torch.Tensor) -> Tensors:
            with own, lift:
                outputs = [lift.input_for(x.detach()) for x in function(*tensors)]
            self.outputs = in_own_memory(outputs, (*tensors, *lift.captured))
            return (*self.outputs, *own.tokens[-1:])

        graph = fake.record_part(run, operands)
        refuse_writes(graph)
        self.graph = fold_identities(drop_zero_tangents(graph))
        self.captured, self.tokens = lift.captured, len(own.tokens)
        if any(map(is_mutable, all_nodes(self.graph))):
            pure = torch.func.functionalize(self.graph, remove="mutations")
            self.graph = fake.record_part(pure, examples_of(self.graph))
        recording().bodies += own.bodies

    def draws(self) -> bool:
        """True if it draws random numbers."""
        return any(map(is_draw, all_nodes(self.graph)))

    def on(self, count: int, places: Sequence[int], effect: bool) -> FlatFunction:
        """The graph as a function of ``count`` operands and of all that is captured.

        ``places``: where among the latter its own are. ``effect``: return a token.
        """

        def run(*tensors: torch.Tensor) -> Tensors:
            results = self.graph(*tensors[:count], *[tensors[count + i] for i in places])
            values = tuple(map(in_rows, results[: len(self.outputs)]))
            tokens = results[len(values) :] or (torch.empty(0),)
            return (*values, *tokens) if effect else values

        return run


def in_own_memory(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Tensors:
    """``outputs``, copied where they share memory with one another or with ``others``."""
    taken = {x.untyped_storage()._cdata for x in others if fake.is_fake(x)}
    found = []
    for output in outputs:
        memory = output.untyped_storage()._cdata
        found.append(output.clone() if memory in taken else output)
        taken.add(memory)
    return tuple(found)


def in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with the strides that a new tensor has, also in dims of size 1."""
    strides, size = [], 1
    for length in reversed(tensor.shape):
        strides.append(size)
        size *= max(length, 1)
    if tensor.stride() == tuple(reversed(strides)):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def refuse_writes(graph: GraphModule) -> None:
    """Raise TraceError if ``graph`` changes one of its inputs in place."""
    for node in set(inputs_of(graph)) & written(graph.graph):
        raise TraceError(
            f"cond under jit: a branch changes in place a tensor of shape "
            f"{tuple(node.meta['val'].shape)} that it was given or captures. Return the new value "
            f"from the branch, and write it after cond."
        )


def choose(
    pred: torch.Tensor, branches: tuple[FlatFunction, FlatFunction], operands: Tensors, again: bool
) -> Tensors:
    """A choice in the graph being traced; the traced outputs.

    ``again``: the branches repeat what has run before, so that they may neither draw random numbers
    nor have an effect.
    """
    if fake.is_aside():
        return branches[0](*operands)
    unique = list({id(x): x for x in operands}.values())
    order = [next(i for i, x in enumerate(unique) if x is operand) for operand in operands]
    mode = fake.mode_of([pred, *operands])
    fakes = [x.detach() if fake.is_fake(x) else fake.stand_in(mode, x) for x in unique]
    both = [Branch(lambda *xs, f=f: f(*[xs[i] for i in order]), fakes) for f in branches]
    if again and any(branch.draws() for branch in both):
        raise TraceError(
            "cond under jit: a branch that draws random numbers is differentiated in reverse, "
            "where it would run twice and draw others. Draw them before cond, and pass them to it "
            "as an operand."
        )
    return as_node(pred, both[0], both[1], unique, again)


def as_node(
    pred: torch.Tensor, first: Branch, second: Branch, operands: list[torch.Tensor], again: bool
) -> Tensors:
    """The node in the graph, and what it returns."""
    captured = list({id(x): x for x in first.captured + second.captured}.values())
    ids = [id(x) for x in captured]
    active = recording()
    effect = bool(first.tokens or second.tokens) and not again
    functions = [
        branch.on(len(operands), [ids.index(id(x)) for x in branch.captured], effect)
        for branch in (first, second)
    ]
    if not (first.outputs or effect):
        return ()
    everything = [*operands, *captured, *(active.tokens[-1:] if effect else [])]
    with torch.no_grad():
        results = CHOICE(pred, *functions, everything)
    if effect:
        active.tokens.append(results[-1])
    return tuple(results[: len(first.outputs)])


def take(pred: torch.Tensor, first: Any, second: Any, operands: Sequence[torch.Tensor]) -> Any:
    """The branch that ``pred`` chooses, run; torch's operator costs fifty times a small branch."""
    return (first if pred else second).forward(*operands)


def runnable(graph: GraphModule) -> GraphModule:
    """``graph`` for being run operator by operator: a copy if there is a choice in it."""
    if not any(node.target is CHOICE for node in graph.graph.nodes):
        return graph
    made = GraphModule(graph, copy.deepcopy(graph.graph))
    for node in made.graph.nodes:
        if node.target is CHOICE:
            node.target = take
    for name, part in list(made.named_children()):
        if isinstance(part, GraphModule):
            setattr(made, name, runnable(part))
    made.recompile()
    return made


class _AtLevels(Interpreter):
    """Runs a graph with its choices as calls of ``cond``, which every level follows."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is not CHOICE:
            return super().call_function(target, args, kwargs)
        pred, true_graph, false_graph, operands = args
        return cond(pred, true_graph, false_graph, *operands)


def at_levels(graph: GraphModule, operands: Sequence[torch.Tensor]) -> Any:
    """What ``graph`` returns, under whatever levels are active."""
    return _AtLevels(graph).run(*operands)


class GraphTracer:
    """What the tracer of :func:`fxforms.jit` can do where a value is needed."""

    stage = staticmethod(stage_call)
    choose = staticmethod(choose)
    is_aside = staticmethod(fake.is_aside)

    @contextlib.contextmanager
    def aside(self) -> Any:
        """A context in which nothing is put into the graph."""
        with Recording(), fake.disable_proxy_modes_tracing():
            yield

    def is_known(self, tensor: torch.Tensor) -> bool:
        """True for a tensor of the graph, and for a real one; False for what is made aside."""
        tensor = substrate.physical(tensor)
        return not fake.is_fake(tensor) or fake.is_recorded_around(tensor)


TRACER = GraphTracer()
