"""The order of steps: that of the engine.

The engine's capture visits the nodes depth first. In a backward pass the node that was made last
runs first, and AccumulateGrad as soon as it can, so hooks on different branches would be called in
another order than they are in eager mode, and gradients be summed in another.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

from fxforms.staging.backward.steps import Kind, Program, Slot, Step

_MAX_TRIES = 100


def reorder(program: Program, order: Sequence[Any]) -> None:
    """Bring the steps of ``program`` into the ``order`` in which the engine would run the nodes.

    Where it is not known, or the nodes of several outputs cannot be told apart, the steps stay in
    the order they have, but for AccumulateGrad.
    """
    ranks = node_ranks(program, order)
    if ranks is None:
        ranks = {call: -1 for call, name in program.names.items() if name == "AccumulateGrad"}
    program.steps = scheduled(program, ranks)


def scheduled(program: Program, ranks: dict[int, int]) -> list[Step]:
    """The steps, each after those it needs, in the order of their nodes' ranks."""
    priority = {id(step): (_rank(step, ranks), index) for index, step in enumerate(program.steps)}
    makers = {slot: step for step in program.steps for slot in step.results}
    waits, followers = _dependencies(program.steps, makers)
    ready = [(priority[id(s)], s) for s in program.steps if not waits[id(s)]]
    heapq.heapify(ready)
    done = []
    while ready:
        _, step = heapq.heappop(ready)
        done.append(step)
        for follower in followers[id(step)]:
            waits[id(follower)] -= 1
            if not waits[id(follower)]:
                heapq.heappush(ready, (priority[id(follower)], follower))
    assert len(done) == len(program.steps)
    return done


def _rank(step: Step, ranks: dict[int, int]) -> int:
    """Sums come at once; then the nodes by rank, else as they are."""
    if step.kind is Kind.SUM:
        return -1
    return ranks.get(step.call, step.call)


def _dependencies(
    steps: list[Step], makers: dict[Slot, Step]
) -> tuple[dict[int, int], dict[int, list[Step]]]:
    """How many steps each step waits for, and which wait for it.

    The steps of one node keep their order: a hook changes what the next one is given.
    """
    waits = {id(step): 0 for step in steps}
    followers: dict[int, list[Step]] = {id(step): [] for step in steps}
    last: dict[int, Step] = {}
    for step in steps:
        before = [makers[slot] for slot in dict.fromkeys(step.operands) if slot in makers]
        if step.kind is not Kind.SUM:
            before += [last[step.call]] if step.call in last else []
            last[step.call] = step
        for other in {id(s): s for s in before}.values():
            waits[id(step)] += 1
            followers[id(other)].append(step)
    return waits, followers


def node_ranks(program: Program, order: Sequence[Any]) -> dict[int, int] | None:
    """The place in ``order`` of the node of each call; None if it cannot be told.

    Calls are matched with nodes along the edges of the graph, from the outputs on.
    """
    edges = _call_edges(program)
    roots = list(dict.fromkeys(edges.get(0, {}).values()))
    rank = {node: index for index, node in enumerate(order)}
    candidates = [_candidates(program.names[call], order, len(roots)) for call in roots]
    for nodes in itertools.islice(itertools.product(*candidates), _MAX_TRIES):
        found = _matched(program, edges, list(zip(roots, nodes)))
        if found is not None:
            return {call: rank[node] for call, node in found.items() if node in rank} | {0: -1}
    return None


def _candidates(name: str, order: Sequence[Any], count: int) -> list[Any]:
    """The nodes that an output may be of: the first to run, if there is one output only."""
    if count == 1:
        return list(order[:1])
    return [node for node in order if name_of(node) == name]


def name_of(node: Any) -> str:
    """The name of a node as the calls have it. A user may have set ``ctx.name``."""
    return str(type(node).name(node)).removeprefix("torch::autograd::")


def _call_edges(program: Program) -> dict[int, dict[int, int]]:
    """Which call takes output ``k`` of each call: ``{call: {k: call}}``."""
    readers: dict[Slot, Step] = {}
    for step in program.steps:
        for slot in step.operands:
            readers[slot] = step  # a later reader in the same call is the node's own
    finals: dict[int, Step] = {}
    for step in program.steps:
        if step.kind is Kind.POST_HOOK or step.name == "validate":
            finals[step.call] = step
    edges: dict[int, dict[int, int]] = {}
    for call, final in finals.items():
        for index, slot in enumerate(final.results):
            reader = readers.get(slot)
            while reader is not None and reader.kind is Kind.SUM:
                reader = readers.get(reader.results[0])
            if reader is not None and reader.call != call:
                edges.setdefault(call, {})[index] = reader.call
    return edges


def _matched(
    program: Program, edges: dict[int, dict[int, int]], pairs: list[tuple[int, Any]]
) -> dict[int, Any] | None:
    """Each call's node, starting from the ``pairs`` known; None if names do not agree."""
    found: dict[int, Any] = {}
    if len({node for _, node in pairs}) < len(pairs):
        return None
    while pairs:
        call, node = pairs.pop()
        if call in found:
            if found[call] is not node:
                return None
            continue
        if node is None or name_of(node) != program.names[call]:
            return None
        found[call] = node
        following = node.next_functions
        pairs += [(to, following[k][0]) for k, to in edges.get(call, {}).items()]
    return found
