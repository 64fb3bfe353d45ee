"""The ends of a traced graph."""

from __future__ import annotations

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
