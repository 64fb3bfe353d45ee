"""The ends of a traced graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule, Node


def inputs_of(graph: GraphModule) -> list[Node]:
    """The placeholders of ``graph``."""
    return graph.graph.find_nodes(op="placeholder")


def examples_of(graph: GraphModule) -> list[Any]:
    """The fake tensors that ``graph`` was traced on."""
    return [node.meta["val"] for node in inputs_of(graph)]


def output_of(graph: GraphModule) -> Any:
    """The node whose first argument holds what ``graph`` returns."""
    return graph.graph.output_node()


def all_nodes(graph: GraphModule) -> Iterator[Node]:
    """The nodes of ``graph`` and of the branches in it."""
    for module in graph.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def writes(operator: Any) -> bool:
    """True for an operator that writes to one of its arguments."""
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))


def is_mutable(node: Node) -> bool:
    """True for a call of such an operator."""
    return writes(node.target)
