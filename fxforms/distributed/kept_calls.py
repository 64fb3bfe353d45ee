"""Calls that leave the graph of a remote function on its worker, and the backward pass there.

NOTE [residuals stay on the worker]

A grad level, and plain autograd, have the worker keep the graph: forward is one message, and
backward one with the cotangents alone. That graph is of plain autograd and cannot be differentiated
again. So where a level below differentiates too, forward keeps nothing, and backward is a remote
function of operands and cotangents, which computes the forward pass anew and has exact derivatives
of any order. Inside an autograd context it is so as well, since there the context keeps the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.distributed import residuals
from fxforms.distributed.calls import call_async, call_command
from fxforms.distributed.context import current_context
from fxforms.distributed.current import current_agent
from fxforms.distributed.futures import Future
from fxforms.distributed.parts import (
    Part,
    ask_all_unrecorded,
    divide,
    join_pieces,
    numbered,
    spread,
)
from fxforms.distributed.residuals import Handle
from fxforms.distributed.transformed import Transform
from fxforms.functions import inline
from fxforms.functions.bind import bind
from fxforms.transforms.flat import Tensors

Level = tuple[int, int]  # the number of a vmap level, and its batch size


def differentiated(operands: Sequence[torch.Tensor]) -> bool:
    """True if a level, plain autograd or a context differentiates."""
    return current_context() is not None or inline.differentiated(operands)


class Kept:
    """The graph of one part.

    Attributes:
        mask: the operands that are differentiated.
        handle: names the graph on the worker; None if no output has a derivative.
        moving: which outputs have a derivative.
        captured: True if a tensor that the function captured should get a gradient.
        levels: the vmap levels that the graph has a batch dim for.
    """

    def __init__(self, part: Part, mask: Sequence[bool]) -> None:
        self.part, self.mask = part, list(mask)
        self.handle: Handle | None = None
        self.moving: list[bool] = []
        self.captured = False
        self.levels: list[Level] = []
        self._maps: list[Transform] = []

    def request(self, operands: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The arguments of `residuals.keep`."""
        self.handle = Handle(self.part.worker)
        return (self.handle.id, *self.part.described, self._maps, self.mask, *operands)

    def take(self, answer: Any) -> Tensors:
        """The outputs in the answer of `residuals.keep`."""
        self.moving, self.captured, returned, drawn, outputs = answer
        self.part.returned[0], self.part.drawn[0] = returned, drawn
        if self.handle is not None and not any(self.moving):
            self.handle.released()
            self.handle = None
        return outputs  # type: ignore[no-any-return]

    def map(self, level: Level, in_dims: Sequence[int | None], randomness: str) -> None:
        """Add a vmap level."""
        self.levels.append(level)
        self._maps.append(["vmap", list(in_dims), randomness, level[1]])


class KeptCall:
    """A call whose graphs stay on the workers; the levels below, if any, are vmaps.

    Attributes:
        mask: the operands that are differentiated.
        graphs: one for each part.
        marker: an operand of the backward call that every vmap level below sees as batched; empty
            if there is none.
    """

    def __init__(self, call: Any, mask: Sequence[bool]) -> None:
        self.__name__ = call.__name__
        self._call, self.mask = call, list(mask)
        self.graphs = [Kept(part, chosen) for part, chosen in numbered(call.parts, self.mask)]
        self.marker: tuple[torch.Tensor, ...] = ()

    @property
    def moving(self) -> list[bool]:
        """Which outputs have a derivative."""
        return [moves for graph in self.graphs for moves in graph.moving]

    @property
    def captured(self) -> bool:
        """True if a tensor that the function captured should get a gradient."""
        return any(graph.captured for graph in self.graphs)

    def forward(self, operands: Tensors) -> Tensors:
        """The outputs; sets what the graphs say."""
        outputs = self.bind(*operands)
        if any(graph.levels for graph in self.graphs):
            marker: Any = sum(x.new_zeros((), dtype=torch.bool) for x in operands)
            self.marker = (marker,)
        return outputs

    def forward_async(self, operands: Tensors, read: Callable[[Tensors], Any]) -> Future[Any]:
        """The future of ``read`` of the outputs of a call of one part, with no level active."""
        (graph,) = self.graphs
        part = graph.part
        with torch.no_grad():
            request = graph.request(operands)
            command = call_command("rpc_async", residuals.keep, request, None)

            def take(answer: Any) -> Any:
                return read(self._call.gather([graph.take(answer.value)]))

            return call_async(current_agent(), part.worker, command, part.timeout, take)

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """The call, with no level active."""
        parts = self._call.parts
        requests = [g.request(xs) for g, (_, xs) in zip(self.graphs, numbered(parts, operands))]
        answers = ask_all_unrecorded(residuals.keep, parts, requests)
        outputs: Tensors = self._call.gather([g.take(a) for g, a in zip(self.graphs, answers)])
        return outputs

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        primitive: Any = self
        outputs: Tensors = bind(primitive, operands)
        return outputs

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """The call with the whole batch."""
        level = substrate.level_depth() + 1, info.batch_size
        out_dims: list[int | None] = []
        for graph, (_, dims) in zip(self.graphs, numbered(self._call.parts, in_dims)):
            batched = any(dim is not None for dim in dims)
            out_dims.append(0 if batched else None)
            if batched:
                graph.map(level, dims, info.randomness)
        outputs = self.bind(*operands)
        counts = self._call.counts
        return outputs, spread(out_dims, counts)

    def backward(self, cotangents: Sequence[torch.Tensor]) -> Tensors:
        """The gradients at one cotangent for each output, of the operands in the mask."""
        pieces = divide(cotangents, self._call.counts)
        graphs, given = [], []
        for graph, cts in zip(self.graphs, pieces):
            if any(graph.mask):
                graphs.append(graph)
                given.append([ct for ct, moves in zip(cts, graph.moving) if moves])
        retain = substrate.keeps_graph()
        pull = PullCall(self.__name__, graphs, retain, len(self.marker), [[] for _ in graphs])
        return pull.bind(*self.marker, *join_pieces(given))


class PullCall:
    """The backward pass of kept graphs: of a marker and cotangents, to gradients.

    Each vmap level adds its batch dim in front, whether a graph has it too or not.
    """

    def __init__(
        self,
        name: str,
        graphs: list[Kept],
        retain: bool,
        markers: int,
        levels: list[list[list[Any]]],
    ) -> None:
        self.__name__ = f"the backward pass of {name}"
        self._name, self._graphs, self._retain, self._markers = name, graphs, retain, markers
        self._levels = levels  # for each graph, as `residuals.pull` takes them

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        primitive: Any = self
        gradients: Tensors = bind(primitive, operands)
        return gradients

    def _pieces(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """``values``, one for each cotangent, by graph."""
        return divide(values[self._markers :], [sum(graph.moving) for graph in self._graphs])

    def evaluate(self, *operands: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The call, with no level active; None from a part whose outputs have no derivative."""
        pieces = zip(self._graphs, self._levels, self._pieces(operands))
        asked = [(graph, levels, cts) for graph, levels, cts in pieces if graph.handle is not None]
        parts = [graph.part for graph, _, _ in asked]
        requests = [(g.handle.id, levels, self._retain, *cts) for g, levels, cts in asked]  # type: ignore[union-attr]
        answers = iter(ask_all_unrecorded(residuals.pull, parts, requests))
        if not self._retain:
            for graph, _, _ in asked:
                graph.handle.released()  # type: ignore[union-attr]
        nothing = [
            [None] * sum(graph.mask) if graph.handle is None else None for graph in self._graphs
        ]
        return join_pieces([next(answers) if none is None else none for none in nothing])

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """The gradients of the whole batch."""
        number = substrate.level_depth() + 1, info.batch_size
        below: list[list[list[Any]]] = []
        out_dims: list[int | None] = []
        for graph, levels, dims in zip(self._graphs, self._levels, self._pieces(in_dims)):
            own, has = number in graph.levels, [dim is not None for dim in dims]
            batched = own or any(has)
            below.append([[info.batch_size, own, has], *levels] if batched else levels)
            out_dims.append(0 if batched else None)
        fronted = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(operands, in_dims)]
        pull = PullCall(self._name, self._graphs, self._retain, self._markers, below)
        return pull.bind(*fronted), spread(out_dims, [sum(g.mask) for g in self._graphs])
