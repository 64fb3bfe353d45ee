"""One worker's part of a backward pass: gradients come, run through the graph, and go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from fxforms import _substrate as substrate
from fxforms.distributed.functions import RECV, SendRpcBackward, Source
from fxforms.distributed.plan import Plan, bits
from fxforms.errors import GradientError

Grads = list[torch.Tensor | None]
_KEPT = 16  # passes of one context that are kept without need


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

    Attributes:
        users: how many threads work on it now.
    """

    def __init__(
        self,
        sends: dict[int, SendRpcBackward],
        roots: Sequence[GradientEdge],
        accumulate: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        self.users = 0
        known = list(sends.values())
        self._plan = Plan([roots, *(send.edges for send in known)])
        self._sources = {send.message_id: i for i, send in enumerate(known, 1)}
        self._accumulate = accumulate
        self._lock = threading.Lock()
        self._arrived: dict[int, Grads] = {}
        self._needed: set[int] | None = None  # the sources that will come, once that is known
        self._lacking = {group: group.bit_count() for group in self._plan.groups}
        self._begun: dict[int, None] = {}  # groups of which a source has come, and not all
        self._followed: set[int] = set()
        self._groups_of: dict[int, list[int]] = {}
        for group in self._plan.groups:
            for source in bits(group):
                self._groups_of.setdefault(source, []).append(group)

    @property
    def idle(self) -> bool:
        """True if this could be made anew: nothing works on it, waits, or is known to come."""
        coming = (self._needed or set()) & self._groups_of.keys()
        return not (self.users or self._begun or coming)

    def begin(self, grads: Grads, retain_graph: bool) -> tuple[list[Fired], int]:
        """Take the gradients of the roots."""
        return self._take(0, grads, retain_graph)

    def deliver(self, message_id: int, grads: Grads, retain_graph: bool) -> tuple[list[Fired], int]:
        """Take the gradients of a send function, and run what can run.

        Returns:
            What leaves this worker, and the change (-1, 0, 1) in whether gradients wait here.
        """
        source = self._sources.get(message_id)
        if source is None or len(grads) != len(self._plan.sources[source]):
            raise GradientError(
                f"Gradients came for the send function {message_id}, which this worker does not "
                "have. The forward pass must have ended before the backward pass begins."
            )
        return self._take(source, grads, retain_graph)

    def resume(self, retain_graph: bool) -> tuple[list[Fired], int]:
        """Run what waits for sources that are not needed, once `need` has told which are."""
        with self._lock:
            before = bool(self._begun)
            self._leave_out()
            return self._advance(retain_graph), bool(self._begun) - before

    def need(self, message_ids: Sequence[int]) -> list[Source]:
        """Note that gradients will come for these send functions; where they will go on to."""
        with self._lock:
            ahead: list[int] = []
            if self._needed is None:
                self._needed = set()
                ahead += self._begun
            for message_id in message_ids:
                source = self._sources[message_id]
                self._needed.add(source)
                ahead += self._groups_of.get(source, [])
            new = dict.fromkeys(group for group in ahead if group not in self._followed)
            self._followed.update(new)
            ends = [end for group in new for end in self._plan.groups[group]]
            return [end.source for end in ends if type(end) is RECV]

    def _take(self, source: int, grads: Grads, retain: bool) -> tuple[list[Fired], int]:
        with self._lock:
            before = bool(self._begun)
            self._arrived[source] = grads
            for group in self._groups_of.get(source, ()):
                self._begun[group] = None
            self._count_down(source)
            if self._needed is not None:  # the pass stood still before it came here
                self._leave_out()
            fired = self._advance(retain)
            return fired, bool(self._begun) - before

    def _leave_out(self) -> None:
        """Wait no more for sources that are not needed."""
        for source in self._groups_of.keys() - self._arrived.keys() - (self._needed or set()):
            self._count_down(source)

    def _count_down(self, source: int) -> None:
        """Note that nothing waits for ``source`` any more."""
        for group in self._groups_of.pop(source, ()):
            self._lacking[group] -= 1

    def _advance(self, retain: bool) -> list[Fired]:
        """Run every group that has all its gradients."""
        ready = [group for group in self._begun if not self._lacking[group]]
        fired: list[Fired] = []
        for group in ready:
            del self._lacking[group], self._begun[group]
            shares = any(group & other for other in self._lacking)
            fired += self._run(group, retain or shares)
        if not self._lacking:
            self._arrived.clear()
        return fired

    def _run(self, group: int, retain: bool) -> list[Fired]:
        """Take the gradients of a group's sources to its ends."""
        starts: list[Any] = []
        grads: list[torch.Tensor] = []
        for source, edges in self._plan.edges_from(group):
            for edge, grad in zip(edges, self._arrived.get(source, ())):
                if grad is not None:
                    starts.append(edge)
                    grads.append(grad)
        ends = self._plan.groups[group]
        targets: list[Any] = [GradientEdge(end, i) for end in ends for i in range(width(end))]
        found: Any = [None] * len(targets)
        if starts:
            found = substrate.run_backward(starts, grads, targets, retain, False)
        rest = iter(found)
        fired = []
        for end in ends:
            mine = [next(rest) for _ in range(width(end))]
            if type(end) is RECV:
                fired.append(Fired(end.source, mine))
            elif mine[0] is not None:
                self._accumulate(end.variable, mine[0])
        return fired


def width(end: Any) -> int:
    """How many gradients an end takes."""
    return end.source.count if type(end) is RECV else 1


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

    def __len__(self) -> int:
        return len(self._passes)

    @contextmanager
    def using(self, id: int, roots: Sequence[GradientEdge] = ()) -> Iterator[BackwardPass]:
        """The pass ``id``, begun with the graph as it is now if it is new here."""
        with self._lock:
            found = self._passes.get(id)
            if found is None:
                found = self._passes[id] = BackwardPass(self._sends, roots, self._accumulate)
            found.users += 1
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                if len(self._passes) > _KEPT:
                    self._forget_idle()

    def _forget_idle(self) -> None:
        """Forget passes that have ended here, or could begin anew, oldest first."""
        idle = [id for id, one in self._passes.items() if one.idle]
        for id in idle[: len(self._passes) - _KEPT]:
            del self._passes[id]

    def end(self, id: int) -> None:
        """Forget the pass ``id``."""
        self._passes.pop(id, None)
