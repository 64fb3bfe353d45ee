"""``compiled_backward``: ``loss.backward()`` on captured and compiled programs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import UnsupportedError
from fxforms.staging.backward.formulas import Segment, segment, trace
from fxforms.staging.backward.partition import Compiler
from fxforms.staging.backward.plain import perform, release, run_plain
from fxforms.staging.backward.recorder import capturing
from fxforms.staging.backward.steps import Kind, Program, Slot, Step
from fxforms.staging.compiler import compile_module

# A Segment compiles once for each signature of its inputs; the oldest gives way.
_MAX_SIGNATURES = 64


@contextlib.contextmanager
def compiled_backward(compiler: Compiler | None = None) -> Iterator[None]:
    """Inside the block, ``.backward()`` and ``torch.autograd.grad`` run compiled programs.

    The program of a pass is captured once for each structure of the graph (nodes, edges, hooks)
    and compiled once for each set of shapes; later passes reuse both, in this block and others.
    Functions and hooks are called between the compiled parts, in the engine's order, and what they
    return is used as it is. Gradients are accumulated by the engine's own AccumulateGrad. A pass
    with ``create_graph=True`` runs the same program uncompiled, so that it can be differentiated.

    The engine has one such block for the process: the blocks of several threads wait for each
    other. A thread must not call ``.backward()`` outside a block while another is inside one.

    Args:
        compiler: ``compiler(graph_module, example_inputs)`` returns a callable; Inductor if None.

    Raises:
        UnsupportedError: entered inside a transform.

    Reference:
        Compiled autograd in torch, on whose engine hook this is built.

    Example:
        >>> import torch, fxforms
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with fxforms.compiled_backward(compiler=lambda graph, examples: graph):
        ...     (w**2).sum().backward()
        >>> w.grad
        tensor([2., 4.])
    """
    if substrate.transforms_active():
        raise UnsupportedError(
            "compiled_backward was entered inside a transform, which runs its own backward pass. "
            "Open the block outside, around .backward()."
        )
    use = compiler or compile_module
    with capturing(lambda program, values: run(program, values, use), run_plain):
        yield


def run(program: Program, values: list[Any], compiler: Compiler) -> list[Any]:
    """One pass; not compiled if it records a graph, or runs at the level of a transform."""
    if torch.is_grad_enabled() or substrate.transforms_active():
        return run_plain(program, values)
    plan = _plans.get(program)
    if plan is None:
        plan = _plans[program] = planned(program)
    for part, dead in plan:
        part.perform(values, compiler)
        release(dead, values)
    return program.results(values)


@dataclass(eq=False)
class OpaquePart:
    """A Function, a hook, or a leaf's ``.grad``."""

    step: Step

    def perform(self, values: list[Any], compiler: Compiler) -> None:
        """Call it."""
        perform(self.step, values)


@dataclass(eq=False)
class CompiledPart:
    """Formulas in a row, with what was compiled of them for each signature."""

    segment: Segment
    compiled: dict[tuple[Any, ...], Callable[[list[Any]], list[Any]]] = field(default_factory=dict)

    def perform(self, values: list[Any] | dict[int, Any], compiler: Compiler) -> None:
        """Call what was compiled for inputs like these, or compile it."""
        given = [values[slot.place] for slot in self.segment.inputs]
        key = (compiler, *map(signature, given))
        function = self.compiled.get(key)
        if function is None:
            function = compiled_for(self.segment, given, compiler)
            if len(self.compiled) >= _MAX_SIGNATURES:
                del self.compiled[next(iter(self.compiled))]
            self.compiled[key] = function
        for slot, value in zip(self.segment.outputs, function(given)):
            values[slot.place] = value


Plan = list[tuple[OpaquePart | CompiledPart, list[int]]]
_plans: weakref.WeakKeyDictionary[Program, Plan] = weakref.WeakKeyDictionary()


def planned(program: Program) -> Plan:
    """The steps of ``program`` in parts, each with the places that no later part reads.

    An accumulation waits for the formulas after it, up to the next call of user code, which may
    look at ``.grad``: so a pass without hooks and Functions is one compiled part.
    """
    groups: list[list[Step]] = []
    formulas: list[Step] = []
    waiting: list[Step] = []
    for step in program.steps:
        if step.kind.traceable:
            formulas.append(step)
        elif step.kind is Kind.ACCUMULATE:
            waiting.append(step)
        else:
            groups += [formulas, *[[x] for x in waiting], [step]]
            formulas, waiting = [], []
    groups += [formulas, *[[x] for x in waiting]]
    return with_lifetimes([steps for steps in groups if steps], program)


def with_lifetimes(groups: list[list[Step]], program: Program) -> Plan:
    """A part for each group of steps, with the places that are not read after it."""
    plan: Plan = []
    later = {x for x in program.outputs if isinstance(x, Slot)}
    for steps in reversed(groups):
        part = part_of(steps, later)
        used = {x for step in steps for x in (*step.operands, *step.results)}
        plan.append((part, [slot.place for slot in used - later]))
        later |= used
    plan.reverse()
    return plan


def part_of(steps: list[Step], later: set[Slot]) -> OpaquePart | CompiledPart:
    """The part that runs ``steps``: formulas, or a single other step."""
    if steps[0].kind.traceable:
        return CompiledPart(segment(steps, later))
    return OpaquePart(steps[0])


def signature(value: Any) -> Any:
    """What a compiled part depends on of one input: of a tensor all but its numbers."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided:
        return value.layout, value.dtype, value.shape, value.device
    flags = value.is_conj(), value.is_neg(), value.requires_grad
    return value.dtype, value.shape, value.stride(), value.device, flags, type(value)


def compiled_for(
    part: Segment, given: Sequence[Any], compiler: Compiler
) -> Callable[[list[Any]], list[Any]]:
    """``part`` for inputs like ``given``; a formula that depends on numbers stays as it is."""
    try:
        traced = trace(part, given)
    except RuntimeError:  # so torch says that a formula depends on numbers, in many ways
        return part.run if len(part.steps) == 1 else in_halves(part, compiler)
    tensors = [x.detach() for x in given if isinstance(x, torch.Tensor)]
    function = compiler(traced.graph, tensors) if has_operators(traced.graph) else traced.graph

    def run(given: list[Any]) -> list[Any]:
        found = iter(function(*[x.detach() for x in given if isinstance(x, torch.Tensor)]))
        return [
            next(found) if is_tensor else x
            for x, is_tensor in zip(traced.outputs, traced.is_tensor)
        ]

    return run


def in_halves(part: Segment, compiler: Compiler) -> Callable[[list[Any]], list[Any]]:
    """``part`` as two parts, each compiled at its first call."""
    middle = len(part.steps) // 2
    second = segment(part.steps[middle:], set(part.outputs))
    first = segment(part.steps[:middle], {*second.inputs, *part.outputs})
    halves = CompiledPart(first), CompiledPart(second)

    def run(given: list[Any]) -> list[Any]:
        values = {slot.place: value for slot, value in zip(part.inputs, given)}
        for half in halves:
            half.perform(values, compiler)
        return [values[slot.place] for slot in part.outputs]

    return run


def has_operators(graph: torch.fx.GraphModule) -> bool:
    """True if there is anything in ``graph`` to compile."""
    return any(node.op == "call_function" for node in graph.graph.nodes)
