"""One worker's part of a backward pass: gradients come, run through the graph, and go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from fxforms import _substrate as substrate
from fxforms.distributed.functions import RECV, SendRpcBackward, Source
from fxforms.distributed.plan import LEAF, Edge, Plan, is_end, reached
from fxforms.errors import GradientError

Grads = list[torch.Tensor | None]
_KEPT = 16  # passes of one context, of which earlier ones have ended


@dataclass(slots=True)
class Fired:
    """Gradients that leave this worker by a recv function."""

    source: Source
    grads: Grads


class BackwardPass:
    """What has come and what waits, of one pass on one worker.

    Args:
        sends: the send functions of this worker in the context.
        roots: where the pass begins, on the worker that begins it.
        accumulate: takes a leaf and a gradient of it.
    """

    def __init__(
        self,
        sends: dict[int, SendRpcBackward],
        roots: Sequence[GradientEdge],
        accumulate: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        known = list(sends.values())
        self.plan = Plan([roots, *(send.edges for send in known)])
        self._sources = {send.message_id: i for i, send in enumerate(known, 1)}
        self._edges = [list(roots), *(send.edges for send in known)]
        self._accumulate = accumulate
        self._lock = threading.Lock()
        self._held: dict[int, dict[Edge, torch.Tensor]] = {}
        self._missing = (1 << len(self._edges)) - 2 + bool(roots)
        self._needed: int | None = None  # the sources that will come, once that is known
        self._seen: set[Any] = set()

    def begin(self, grads: Grads, retain_graph: bool) -> tuple[list[Fired], int]:
        """Take the gradients of the roots."""
        return self._take(0, grads, retain_graph)

    def deliver(self, message_id: int, grads: Grads, retain_graph: bool) -> tuple[list[Fired], int]:
        """Take the gradients of a send function, and run what can run.

        Returns:
            What leaves this worker, and the change (-1, 0, 1) in whether gradients wait here.
        """
        source = self._sources.get(message_id)
        if source is None or len(grads) != len(self._edges[source]):
            raise GradientError(
                f"Gradients came for the send function {message_id}, which this worker does not "
                "have. The forward pass must have ended before the backward pass begins."
            )
        return self._take(source, grads, retain_graph)

    def resume(self, retain_graph: bool) -> tuple[list[Fired], int]:
        """Run what waits for sources that are not needed, once `need` has told which are."""
        with self._lock:
            return self._advance(retain_graph), bool(self._held) - 1

    def need(self, message_ids: Sequence[int]) -> list[Source]:
        """Note that gradients will come for these send functions; where they will go on to."""
        with self._lock:
            edges: list[Any] = []
            if self._needed is None:
                self._needed = 0
                edges += [edge for held in self._held.values() for edge in held]
            for message_id in message_ids:
                source = self._sources[message_id]
                self._needed |= 1 << source
                edges += self._edges[source]
            return [node.source for node in reached(edges, self._seen)]

    def _take(self, source: int, grads: Grads, retain: bool) -> tuple[list[Fired], int]:
        with self._lock:
            before = bool(self._held)
            self._missing &= ~(1 << source)
            for edge, grad in zip(self._edges[source], grads):
                if grad is not None:
                    self._hold((edge.node, edge.output_nr), grad)
            fired = self._advance(retain)
            return fired, bool(self._held) - before

    def _advance(self, retain: bool) -> list[Fired]:
        """Run every part that has all its gradients; those of fewer sources come before others."""
        fired: list[Fired] = []
        missing = self._missing if self._needed is None else self._missing & self._needed
        while ready := [part for part in self._held if not part & missing]:
            fired += self._run(min(ready, key=int.bit_count), retain)
        return fired

    def _run(self, part: int, retain: bool) -> list[Fired]:
        held = self._held.pop(part)
        starts = {edge: grad for edge, grad in held.items() if not is_end(edge[0])}
        ends = self.plan.ends.get(part)
        if starts and ends:
            outputs: Any = [GradientEdge(*edge) for edge in starts]
            inputs: Any = [GradientEdge(*edge) for edge in ends]
            found = substrate.run_backward(outputs, [*starts.values()], inputs, retain, False)
            for edge, grad in zip(ends, found):
                if grad is not None:
                    self._hold(edge, grad)
        leaving: dict[Any, Grads] = {}
        for (node, index), grad in {**held, **self._held.pop(part, {})}.items():
            if type(node) is RECV:
                grads = leaving.setdefault(node, [None] * node.source.count)
                grads[index] = grad
        return [Fired(node.source, grads) for node, grads in leaving.items()]

    def _hold(self, edge: Edge, grad: torch.Tensor) -> None:
        """Add a gradient to those of ``edge``; that of a leaf has arrived."""
        node = edge[0]
        if type(node) is LEAF:
            self._accumulate(node.variable, grad)
            return
        held = self._held.setdefault(self.plan.part_of[node], {})
        before = held.get(edge)
        held[edge] = grad if before is None else before + grad


class Passes:
    """The backward passes that reached one worker in one context.

    Args:
        sends: the send functions of this worker in the context.
        accumulate: takes a leaf and a gradient of it.
    """

    def __init__(
        self,
        sends: dict[int, SendRpcBackward],
        accumulate: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        self._sends = sends
        self._accumulate = accumulate
        self._lock = threading.Lock()
        self._passes: dict[int, BackwardPass] = {}

    def get(self, id: int, roots: Sequence[GradientEdge] = ()) -> BackwardPass:
        """The pass ``id``, begun with the graph as it is now if it is new here."""
        with self._lock:
            found = self._passes.get(id)
            if found is None:
                found = self._passes[id] = BackwardPass(self._sends, roots, self._accumulate)
                while len(self._passes) > _KEPT:
                    del self._passes[next(iter(self._passes))]
        return found

    def end(self, id: int) -> None:
        """Forget the pass ``id``."""
        self._passes.pop(id, None)
