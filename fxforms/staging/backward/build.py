"""A program as one FX graph, a function of cotangents and saved values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fxforms._tree import map_leaves
from fxforms.errors import UnsupportedError
from fxforms.staging.backward import engine
from fxforms.staging.backward.formulas import Segment, run_formula, segment, trace
from fxforms.staging.backward.graph_nodes import (
    OpaqueNode,
    accumulate_grad,
    formula_node,
    function_node,
    post_accumulate_node,
    post_hook_node,
    pre_hook_node,
    tensor_hook_node,
    zeros_like,
)
from fxforms.staging.backward.opaque_steps import differentiated_once, run_unpack
from fxforms.staging.backward.steps import Kind, Program, Slot, Step


class Builder:
    """The graph of one program for one set of values.

    ``nodes`` holds the FX node of each slot that is a tensor; ``examples`` its fake, or the value
    of a slot that is none.
    """

    def __init__(
        self,
        program: Program,
        values: list[Any],
        cotangents: Sequence[Any],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """``outputs``: what the pass is of."""
        self.program = program
        self.outputs = outputs
        self.values = values
        self.mode = engine.fake_mode()
        self.root = torch.nn.Module()
        self.graph = torch.fx.Graph()
        self.nodes: dict[Slot, torch.fx.Node] = {}
        self.examples: dict[Slot, Any] = {}
        self.saved: list[torch.Tensor] = []
        self.grads: dict[int, tuple[torch.Tensor, Slot]] = {}  # by the place of the leaf
        self.checks = checks_of_functions(program.steps)
        merged = {id(check) for check in self.checks.values()}
        self.steps = [step for step in program.steps if id(step) not in merged]
        self._place_inputs(cotangents)

    def build(self) -> torch.fx.GraphModule:
        """The graph; its outputs are those of the program, then the ``.grad`` of each leaf."""
        part: list[Step] = []
        for index, step in enumerate(self.steps):
            if step.kind.traceable:
                part.append(step)
                continue
            self._inline(part, self.steps[index:])
            part = []
            _ADD[step.kind](self, step)
        self._inline(part, [])
        outputs = [*self.program.outputs, *[slot for _, slot in self.grads.values()]]
        self.graph.output(tuple([self.nodes.get(x) for x in outputs]))
        self.graph.eliminate_dead_code(is_kept)
        self._drop_unused()
        return torch.fx.GraphModule(self.root, self.graph, "CapturedBackward")

    def _place_inputs(self, cotangents: Sequence[torch.Tensor]) -> None:
        """Placeholders: the cotangents, then each other tensor that a step reads."""
        slots = {id(self.values[slot.place]): slot for slot in self.program.tensors}
        for index, tensor in enumerate(cotangents):
            slot = slots.get(id(tensor), Slot(-1))
            self._placeholder(slot, f"grad_{index}", torch.empty_like(tensor).contiguous())
        for step in self.steps:
            if step.kind is Kind.UNPACK:
                (slot,) = step.results
                value = run_unpack(*step.given(self.values))[0]
                self.values[slot.place] = differentiated_once(value, self.outputs)
        made = {slot for step in self.steps for slot in step.results if step.kind != Kind.UNPACK}
        for slot in dict.fromkeys(x for step in self.steps for x in reads(step)):
            value = self.values[slot.place]
            if slot in made or slot in self.nodes:
                continue
            if isinstance(value, torch.Tensor):
                self._placeholder(slot, f"saved_{len(self.saved)}", value)
                self.saved.append(value)
            else:
                self.examples[slot] = value

    def _placeholder(self, slot: Slot, name: str, tensor: torch.Tensor) -> None:
        node = self.graph.placeholder(name)
        self._bind(slot, node, engine.fake(self.mode, tensor))

    def _bind(self, slot: Slot, node: torch.fx.Node, example: torch.Tensor) -> None:
        node.meta["val"] = example
        self.nodes[slot] = node
        self.examples[slot] = example

    def _drop_unused(self) -> None:
        """Leave out saved values that no node reads, as where only a shape was asked for."""
        used: list[torch.Tensor] = []
        for node in self.graph.find_nodes(op="placeholder"):
            if not node.target.startswith("saved_"):
                continue
            index = int(node.target.removeprefix("saved_"))
            if node.users:
                node.target = node.name = f"saved_{len(used)}"
                used.append(self.saved[index])
            else:
                self.graph.erase_node(node)
        self.saved = used

    def _inline(self, steps: list[Step], later: Sequence[Step]) -> None:
        """Add traceable steps, as ATen operators; one by one if they do not trace together."""
        if not steps:
            return
        wanted = {slot for step in later for slot in step.operands}
        part = segment(steps, wanted | set(self.program.outputs))
        try:
            self._copy_in(part)
        except RuntimeError:  # so torch says that a formula depends on numbers, in many ways
            if len(steps) == 1:
                self._add_formula(steps[0])
                return
            for index, step in enumerate(steps):
                self._inline([step], [*steps[index + 1 :], *later])

    def _copy_in(self, part: Segment) -> None:
        traced = trace(part, [self.examples[slot] for slot in part.inputs])
        given = [self.nodes[slot] for slot in part.inputs if slot in self.nodes]
        inner = traced.graph.graph
        places = dict(zip(inner.find_nodes(op="placeholder"), given))
        for node in inner.find_nodes(op="get_attr"):
            name = f"constant_{len(self.root._buffers)}"
            self.root.register_buffer(name, getattr(traced.graph, node.target))
            node.target = name
        results: Any = self.graph.graph_copy(inner, places)
        wanted: Any = inner.output_node().args[0]
        examples = [node.meta["val"] for node in wanted]
        found = iter(zip(results, examples))
        for slot, value, is_tensor in zip(part.outputs, traced.outputs, traced.is_tensor):
            if is_tensor:
                self._bind(slot, *next(found))
            else:
                self.examples[slot] = value

    def _call(self, target: OpaqueNode, args: tuple[Any, ...], step: Step, like: Any) -> None:
        """Add a node that returns one contiguous value for each of ``like``, None for no value."""
        node = self.graph.call_function(target, map_leaves(self._node_of, args))
        for index, (slot, example) in enumerate(zip(step.results, like)):
            if example is None:
                self.examples[slot] = None
            else:
                item = self.graph.call_function(operator.getitem, (node, index))
                self._bind(slot, item, engine.fake(self.mode, example).contiguous())

    def _node_of(self, value: Any) -> Any:
        """The FX node, or the plain value, of a slot."""
        return self.nodes.get(value, self.examples[value]) if isinstance(value, Slot) else value

    def _example_of(self, value: Any) -> Any:
        return self.examples.get(value) if isinstance(value, Slot) else value

    def _add_formula(self, step: Step) -> None:
        """A built-in node that cannot be traced; run once on zeros for the shapes it returns."""

        def real(value: Any) -> Any:
            example = self._example_of(value)
            if not isinstance(example, torch.Tensor):
                return example
            stored = self.values[value.place]
            return stored if stored is not None else torch.zeros(example.shape, dtype=example.dtype)

        found = run_formula(step, map_leaves(real, step.args))
        self._call(formula_node(step), tuple(step.args), step, found)

    def _add_function(self, step: Step) -> None:
        node, saved, grads, materialize, likes = step.args
        check = self._without_numbers(self.checks.get(id(step)))
        likes = map_leaves(self._example_of, likes)
        target = function_node(step, self.values[node.place], materialize, likes, check)
        examples = dict(zip(step.results, map(zeros_like, likes)))
        if check is None:
            self._call(target, (saved, grads), step, list(examples.values()))
        else:
            self._call(target, (saved, grads), check, [examples.get(x) for x in check.args[0]])

    def _without_numbers(self, step: Step | None) -> Step | None:
        """``step`` with the sizes of this pass in the place of their slots."""
        if step is None:
            return None
        numbers = {slot: self.values[slot.place] for slot in self.program.numbers}
        return replace(step, args=map_leaves(lambda x: numbers.get(x, x), step.args))

    def _add_tensor_hook(self, step: Step) -> None:
        hook, grad = step.args
        if self._example_of(grad) is None:
            self.examples[step.results[0]] = None
        else:
            target = tensor_hook_node(self.values[hook.place])
            self._call(target, (grad,), step, [self._example_of(grad)])

    def _add_pre_hook(self, step: Step) -> None:
        hook, grads = step.args
        target = pre_hook_node(self.values[hook.place])
        self._call(target, (grads,), step, map_leaves(self._example_of, grads))

    def _add_post_hook(self, step: Step) -> None:
        hook, outputs, grads = step.args
        target = post_hook_node(self.values[hook.place])
        self._call(target, (outputs, grads), step, map_leaves(self._example_of, outputs))

    def _add_accumulate(self, step: Step) -> None:
        variable, current, grad, _ = step.args
        (result,) = step.results
        if self._example_of(grad) is None:
            result = current
        else:
            args = (self._node_of(current), self._node_of(grad))
            node = self.graph.call_function(accumulate_grad, args)
            self._bind(result, node, self.examples[grad])
        self.grads[variable.place] = self.values[variable.place], result

    def _add_post_accumulate_hook(self, step: Step) -> None:
        hook, variable = step.args
        leaf, grad = self.grads[variable.place]
        if self._example_of(grad) is not None:
            target = post_accumulate_node(self.values[hook.place], leaf)
            self._call(target, (grad,), step, [self.examples[grad]])
            self.grads[variable.place] = leaf, step.results[0]

    def _refuse_cpp_hook(self, step: Step) -> None:
        raise UnsupportedError(
            "capture_backward: a tensor of the graph has a hook written in C++, such as that of "
            "retain_grad(), which only the engine can call. Capture before retain_grad(), or use "
            "fxforms.compiled_backward()."
        )


_ADD: dict[Kind, Callable[[Builder, Step], None]] = {
    Kind.FUNCTION: Builder._add_function,
    Kind.CPP_FUNCTION: Builder._add_formula,
    Kind.ACCUMULATE: Builder._add_accumulate,
    Kind.TENSOR_HOOK: Builder._add_tensor_hook,
    Kind.CPP_HOOK: Builder._refuse_cpp_hook,
    Kind.PRE_HOOK: Builder._add_pre_hook,
    Kind.POST_HOOK: Builder._add_post_hook,
    Kind.POST_ACCUMULATE_HOOK: Builder._add_post_accumulate_hook,
    Kind.UNPACK: lambda builder, step: None,  # done: the result is a saved value
}


def reads(step: Step) -> list[Slot]:
    """The values that the node of ``step`` takes as arguments."""
    if step.kind is Kind.ACCUMULATE:
        return [x for x in step.args[1:3] if isinstance(x, Slot)]
    if step.kind in (Kind.UNPACK, Kind.POST_ACCUMULATE_HOOK):
        return []
    return step.operands


def checks_of_functions(steps: Sequence[Step]) -> dict[int, Step]:
    """The engine's check of the gradients of each Function, by the id of its step."""
    functions = {
        slot: step for step in steps if step.kind is Kind.FUNCTION for slot in step.results
    }
    found = {}
    for step in steps:
        if step.name == "validate":
            for slot in step.operands:
                if slot in functions and functions[slot].call == step.call:
                    found[id(functions[slot])] = step
    return found


def is_kept(node: torch.fx.Node) -> bool:
    """True for a node that runs whether or not its result is used."""
    return isinstance(node.target, OpaqueNode) or node.op in ("placeholder", "output")
