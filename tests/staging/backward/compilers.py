"""Compilers for the tests, which run a graph as it is and tell what they were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Counter:
    """A compiler that counts what it is given and runs it as it is."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.count += 1
        return graph


class Parts:
    """A compiler that keeps the parts it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph

    @property
    def operators(self) -> list[list[str]]:
        """The names of the operators of each part."""
        return [
            [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
            for graph in self.graphs
        ]
