"""The autograd graph of one worker, cut where gradients from several sides join.

NOTE [parts of a graph]

The gradients of a worker's *sources*, the roots of the loss and its send functions, come one after
the other, and what comes last may depend on what went out before. A node may run when all sources
that reach it have come. So the nodes are put into *parts* by the set of sources that reach them; a
part runs at once, by the engine of torch, and every node runs once. Sets are bits of an int.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxforms.distributed.functions import RECV

Edge = tuple[Any, int]  # a node, and which of its gradients
LEAF: Any = type(get_gradient_edge(torch.empty(0, requires_grad=True)).node)
_ENDS = (RECV, LEAF)


class Plan:
    """The parts of the graph below ``sources``, each a list of edges.

    Attributes:
        part_of: for each node, the set of sources that reach it.
        ends: for each part, the edges on which its gradients leave it: to leaves, to recv
            functions and to other parts.
    """

    def __init__(self, sources: Sequence[Sequence[GradientEdge]]) -> None:
        self._sources = sources  # they own the graph
        self.part_of: dict[Any, int] = {}
        waiting = _count(edge.node for edges in sources for edge in edges)
        for index, starts in enumerate(sources):
            for start in starts:
                self.part_of[start.node] = self.part_of.get(start.node, 0) | 1 << index
        ready = [node for node, count in waiting.items() if not count]
        order = []
        while ready:  # sources first
            node = ready.pop()
            if is_end(node):
                continue
            edges = following(node)
            order.append((node, edges))
            for below, _ in edges:
                self.part_of[below] = self.part_of.get(below, 0) | self.part_of[node]
                waiting[below] -= 1
                if not waiting[below]:
                    ready.append(below)
        found: dict[int, dict[Edge, None]] = {}
        for node, edges in order:
            part = self.part_of[node]
            ends = found.setdefault(part, {})
            for edge in edges:
                if is_end(edge[0]) or self.part_of[edge[0]] != part:
                    ends[edge] = None
        self.ends = {part: list(ends) for part, ends in found.items()}


def following(node: Any) -> list[Edge]:
    """The edges from ``node`` on, none from an end of the graph of this worker."""
    if is_end(node):
        return []
    return [edge for edge in node.next_functions if edge[0] is not None]


def is_end(node: Any) -> bool:
    """True for a leaf tensor's node and for a recv function."""
    return type(node) in _ENDS


def _count(roots: Iterable[Any]) -> dict[Any, int]:
    """Each node below ``roots``, with the number of edges that lead to it."""
    counts: dict[Any, int] = {}
    stack = []
    for node in roots:
        if node not in counts:
            counts[node] = 0
            stack.append(node)
    while stack:
        for below, _ in following(stack.pop()):
            if below not in counts:
                counts[below] = 0
                stack.append(below)
            counts[below] += 1
    return counts


def reached(edges: Iterable[Any], seen: set[Any]) -> list[Any]:
    """The recv functions below ``edges``; nodes are added to ``seen``, and not walked again."""
    stack = [edge[0] for edge in edges]
    found = []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node) is RECV:
            found.append(node)
        stack.extend(below for below, _ in following(node))
    return found
