"""A captured graph with its torch operators compiled, part by part."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.passes.split_module import split_module

from fxforms.staging.backward.graph_nodes import OpaqueNode, accumulate_grad

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_parts(graph_module: torch.fx.GraphModule, compiler: Compiler) -> Callable[..., Any]:
    """``graph_module`` with each run of torch operators between opaque nodes compiled."""
    graph_module = copy.deepcopy(graph_module)
    for node in graph_module.graph.find_nodes(op="call_function", target=accumulate_grad):
        with_sum(node)
    parts = parts_of(graph_module)
    split = split_module(graph_module, None, lambda node: parts[node])  # type: ignore[arg-type]
    for name, child in list(split.named_children()):
        if isinstance(child, torch.fx.GraphModule) and not is_opaque(child):
            examples = [node.meta["val"] for node in child.graph.find_nodes(op="placeholder")]
            setattr(split, name, Compiled(compiler(child, examples)))
    return split


def with_sum(node: torch.fx.Node) -> None:
    """Put the sum in the place of an ``accumulate_grad``."""
    current, grad = node.args
    if current is None:
        node.replace_all_uses_with(grad)  # type: ignore[arg-type]
        node.graph.erase_node(node)
    else:
        node.target = torch.ops.aten.add.Tensor


class Compiled(torch.nn.Module):
    """A compiled part, as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def parts_of(graph_module: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """The number of the part that each node is in; an opaque node is a part of its own."""
    parts: dict[torch.fx.Node, int] = {}
    part = 0
    after_opaque = False
    for node in graph_module.graph.nodes:
        opaque = isinstance(node.target, OpaqueNode)
        item = after_opaque and any(isinstance(x.target, OpaqueNode) for x in node.all_input_nodes)
        if opaque or (after_opaque and not item):
            part += 1
        after_opaque = opaque or item
        parts[node] = part
    return parts


def is_opaque(part: torch.fx.GraphModule) -> bool:
    """True if ``part`` holds an opaque node."""
    return any(isinstance(node.target, OpaqueNode) for node in part.graph.nodes)
