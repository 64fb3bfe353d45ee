"""The autograd graph of one worker, as a backward pass over workers sees it.

NOTE [when gradients leave a worker]

The gradients of a worker's *sources*, the roots of the loss and its send functions, come one after
the other, and what comes last may depend on what went out before. An *end*, a leaf or a recv
function, has its gradient when all sources that reach it have come. So the ends are put into
*groups* by the set of sources that reach them; when the last source of a group has come, one run of
torch's engine takes the gradients of all its sources to its ends. The engine has no way to stop at
a node and to go on from there, so a node from which ends of several groups are reached runs once
for each of these groups; every time it gets its whole gradient, so hooks see what they do in one
process. Sets of sources are bits of an int.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxforms.distributed.functions import RECV

LEAF: Any = type(get_gradient_edge(torch.empty(0, requires_grad=True)).node)
_ENDS = (RECV, LEAF)


class Plan:
    """The ends that ``sources``, each a list of edges, reach.

    Attributes:
        sources: the edges, which own the graph.
        groups: for each set of sources, the ends that it reaches.
    """

    def __init__(self, sources: Sequence[Sequence[GradientEdge]]) -> None:
        self.sources = sources
        self.groups: dict[int, list[Any]] = {}
        reached: dict[Any, int] = {}
        waiting = _count(edge.node for edges in sources for edge in edges)
        for index, edges in enumerate(sources):
            for edge in edges:
                reached[edge.node] = reached.get(edge.node, 0) | 1 << index
        ready = [node for node, count in waiting.items() if not count]
        while ready:  # sources first
            node = ready.pop()
            group = reached[node]
            if type(node) in _ENDS:
                self.groups.setdefault(group, []).append(node)
            for below in following(node):
                reached[below] = reached.get(below, 0) | group
                waiting[below] -= 1
                if not waiting[below]:
                    ready.append(below)

    def edges_from(self, group: int) -> Iterable[tuple[int, Sequence[GradientEdge]]]:
        """The sources of a group, each with its edges."""
        return ((i, self.sources[i]) for i in bits(group))


def bits(group: int) -> Iterable[int]:
    """The positions of the bits of ``group``."""
    while group:
        low = group & -group
        yield low.bit_length() - 1
        group ^= low


def following(node: Any) -> list[Any]:
    """The nodes after ``node``, none after an end of the graph of this worker."""
    if type(node) in _ENDS:
        return []
    return [below for below, _ in node.next_functions if below is not None]


def _count(roots: Iterable[Any]) -> dict[Any, int]:
    """Each node below ``roots``, with the number of edges that lead to it."""
    counts: dict[Any, int] = {}
    stack = []
    for node in roots:
        if node not in counts:
            counts[node] = 0
            stack.append(node)
    while stack:
        for below in following(stack.pop()):
            if below not in counts:
                counts[below] = 0
                stack.append(below)
            counts[below] += 1
    return counts
