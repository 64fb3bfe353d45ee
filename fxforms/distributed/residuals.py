"""What a remote function keeps on its worker for the backward pass, behind a handle.

The handle is released when the pass is over, or when the node of the caller's graph dies.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from fxforms import _substrate as substrate
from fxforms.distributed.agent import RpcAgent, giver, prepare
from fxforms.distributed.calls import call_command, send_command
from fxforms.distributed.current import current_agent
from fxforms.distributed.frame import dense
from fxforms.distributed.functions import RECV, as_inputs, edge_of
from fxforms.distributed.plan import LEAF, following
from fxforms.distributed.registry import register, register_own
from fxforms.distributed.remembered import Remembered
from fxforms.distributed.repeated_draws import Drawn
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.transformed import Base, Transform, apply_all
from fxforms.errors import ArgumentError, RpcError
from fxforms.transforms import vmap
from fxforms.transforms.flat import Tensors, fill


@dataclass(slots=True)
class Kept:
    """A graph that waits for its backward pass.

    Attributes:
        caller: the worker that it is kept for.
        inputs: what is differentiated with respect to, as edges and as tensors of
            their shapes, without data.
        outputs: those that have a derivative.
    """

    caller: int
    inputs: list[GradientEdge]
    like: list[torch.Tensor]
    outputs: list[torch.Tensor]


class Residuals:
    """The graphs that one worker keeps for others."""

    def __init__(self) -> None:
        self.kept: dict[int, Kept] = {}
        self._lock = threading.Lock()
        self._released = Remembered()  # before they were kept

    def add(self, handle: int, kept: Kept) -> None:
        """Keep a graph, unless its caller has given it up already."""
        with self._lock:
            if not self._released.take(handle):
                self.kept[handle] = kept

    def release(self, handle: int) -> None:
        """Drop a graph, also one that is still to come."""
        with self._lock:
            if self.kept.pop(handle, None) is None:
                self._released.add(handle)

    def drop_those_of(self, worker: WorkerInfo) -> None:
        """Release what a dead worker will not ask for."""
        for handle, kept in list(self.kept.items()):
            if kept.caller == worker.id:
                self.kept.pop(handle, None)


class Releases:
    """Handles whose nodes died, on their way to the workers that keep the graphs.

    A node dies in any thread, in the middle of anything, so it only leaves its number here.
    """

    def __init__(self, agent: RpcAgent) -> None:
        self._agent = agent
        self.dead: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()

    def send(self) -> None:
        """Tell the workers, until the agent is shut down."""
        while (first := self.dead.get()) is not None:
            handles: dict[int, list[int]] = {}
            item: tuple[int, int] | None = first
            while item is not None:
                handles.setdefault(item[0], []).append(item[1])
                item = None if self.dead.empty() else self.dead.get()
            for worker, ids in handles.items():
                with suppress(RpcError):  # a worker that ends keeps nothing
                    command = call_command("release", release, (ids,), None)
                    send_command(self._agent, self._agent.worker(worker), command)
            if self._agent.closed.is_set():
                return


@prepare
def _prepare(agent: RpcAgent) -> None:
    residuals = agent.state["residuals"] = Residuals()
    releases = agent.state["releases"] = Releases(agent)
    agent.on_lost.append(residuals.drop_those_of)
    agent.on_closed.append(residuals.kept.clear)
    agent.on_closed.append(lambda: releases.dead.put(None))
    agent.counts.append(lambda: {"residuals": len(residuals.kept)})
    agent.pool.submit(releases.send)


class Handle:
    """The caller's hold on a graph that a worker keeps."""

    def __init__(self, worker: WorkerInfo) -> None:
        agent = current_agent()
        self.id = agent.new_id()
        dead = agent.state["releases"].dead
        self._release = weakref.finalize(self, dead.put, (worker.id, self.id))
        self._release.atexit = False

    def released(self) -> None:
        """Note that the worker keeps no graph, or no more."""
        self._release.detach()


def _residuals() -> Residuals:
    found: Residuals = current_agent().state["residuals"]
    return found


@register_own
def release(handles: list[int]) -> None:
    """Drop the graphs of these handles."""
    residuals = _residuals()
    for handle in handles:
        residuals.release(handle)


@register
def keep(
    handle: int,
    name: str,
    arguments: Any,
    drawn: Drawn | None,
    transforms: list[Transform],
    maps: list[Transform],
    mask: list[bool],
    *tensors: torch.Tensor,
) -> tuple[list[bool], bool, Any, Drawn | None, Tensors]:
    """Run a function under ``transforms``, then the vmaps ``maps``, and keep the graph.

    The caller gives the handle, so that it can give the graph up before it has an answer.
    The operands in ``mask`` are differentiated, each sample's apart, so those that all samples
    share are repeated.

    Returns:
        Which outputs have a derivative, whether captured tensors would get one, what the function
        returned and drew, and the tensors of the outputs.
    """
    base = Base(name, arguments, drawn)
    function = apply_all(base, transforms)
    like = [
        batch_first(tensors[i], [[m[1][i], m[3]] for m in reversed(maps)])
        for i, is_chosen in enumerate(mask)
        if is_chosen
    ]
    inputs = as_inputs(like)
    edges = [edge_of(x) for x in inputs]
    operands = fill(mask, inputs, tensors)
    fronted = [
        [kind, [0 if chosen else d for d, chosen in zip(in_dims, mask)], *rest]
        for kind, in_dims, *rest in maps
    ]
    with torch.enable_grad():
        outputs = apply_all(function, fronted)(*operands)
    moving = [x.requires_grad for x in outputs]
    recorded = [x for x in outputs if x.requires_grad]
    if recorded:
        kept = Kept(giver(handle), edges, [x.to("meta") for x in like], recorded)
        _residuals().add(handle, kept)
    captured = not maps and has_others(recorded, edges)
    detached = tuple([x.detach() for x in outputs])
    return moving, captured, base.returned, base.drawn, detached


def batch_first(tensor: torch.Tensor, batches: list[list[Any]]) -> torch.Tensor:
    """A new leaf: ``tensor`` with its batch dims in front, those it lacks repeated.

    ``batches``: for each vmap, outermost first, the dim of the batch or None, and its size.
    """
    for place, (dim, size) in enumerate(batches):
        if dim is None:
            shape = [-1] * (tensor.dim() + 1)
            shape[place] = size
            tensor = tensor.unsqueeze(place).expand(shape)
        else:
            tensor = tensor.movedim(place + dim, place)
    return tensor.detach()


def has_others(outputs: Sequence[torch.Tensor], inputs: Sequence[GradientEdge]) -> bool:
    """True if a leaf, or another worker, has a gradient there, beside ``inputs``."""
    seen: set[Any] = {edge.node for edge in inputs}
    stack = [edge_of(x).node for x in outputs]
    while stack:
        node: Any = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node) in (RECV, LEAF):
            return True
        stack.extend(following(node))
    return False


@register
def pull(handle: int, levels: list[list[Any]], retain: bool, *cotangents: torch.Tensor) -> Tensors:
    """Gradients of the inputs of a kept graph.

    Args:
        handle: the graph; it is dropped unless ``retain``.
        levels: for each batch dim of the result, outermost first, its size, whether the graph has
            it too, and for each cotangent whether it has it.
        cotangents: one for each output that has a derivative.
    """
    kept = _residuals().kept
    found = kept.get(handle) if retain else kept.pop(handle, None)
    if found is None:
        raise ArgumentError(
            "The backward pass of a remote function was run already, and what it needs is gone. "
            "Run the first pass with retain_graph=True."
        )
    given = []
    for i, cotangent in enumerate(cotangents):
        batches = [[0 if present[i] else None, size] for size, _, present in levels]
        given.append(batch_first(cotangent, batches))
    edges: Any = found.inputs
    new = [place for place, (_, own, _) in enumerate(levels) if not own]
    front = list(range(len(new)))

    def run(*cts: torch.Tensor) -> Tensors:
        grads = substrate.run_backward(found.outputs, cts, edges, True, False)
        return tuple(
            [
                torch.zeros_like(x, device="cpu") if g is None else dense(g)
                for g, x in zip(grads, found.like)
            ]
        )

    for _ in new:
        run = vmap(run)
    gradients = run(*[x.movedim(new, front) for x in given])
    return tuple([x.movedim(front, new) for x in gradients])
