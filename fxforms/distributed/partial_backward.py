"""Passes of plain autograd to given inputs: refused where a path to one goes over other workers.

``torch.autograd.grad`` and ``backward(inputs=...)`` run the nodes alone that lead to an input in
the graph of this worker. A recv function has no edge to what was sent, for the pass over workers
must stop there, so such a pass would leave it out and give a part of the gradient. The engine that
torch calls is therefore derived from its own, with a look before each such pass. It is the only
adapter of that class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from fxforms.distributed.agent import RpcAgent, prepare
from fxforms.distributed.functions import RECV, SendRpcBackward, edge_of, recvs_after_sends
from fxforms.errors import GradientError, describe

_Tensors = Sequence[torch.Tensor | GradientEdge]
_Engine: Any = type(torch.autograd.Variable._execution_engine)


class _WatchedEngine(_Engine):  # type: ignore[misc]
    """torch's engine."""

    def run_backward(
        self,
        tensors: _Tensors,
        grad_tensors: Any,
        keep_graph: bool,
        create_graph: bool,
        inputs: _Tensors = (),
        *how: Any,
        **named: Any,
    ) -> Any:
        """As torch's own; raises GradientError where the gradient of an input would be a part."""
        if inputs and recvs_after_sends:
            _refuse_part(tensors, inputs)
        given = (tensors, grad_tensors, keep_graph, create_graph, inputs)
        return super().run_backward(*given, *how, **named)


@prepare
def _watch(agent: RpcAgent) -> None:
    if not isinstance(torch.autograd.Variable._execution_engine, _WatchedEngine):
        torch.autograd.Variable._execution_engine = _WatchedEngine()


def _refuse_part(outputs: _Tensors, inputs: _Tensors) -> None:
    """Raise if ``outputs`` depend on an input by something that was sent before it came back."""
    below = _below(_edges(outputs))
    received = [node for node, _ in below if type(node) is RECV and node.earlier is not None]
    if not received:
        return
    wanted = {(edge.node, edge.output_nr): x for x in inputs for edge in _edges([x])}
    sent = [edge for send in _and_before(node.earlier for node in received) for edge in send.edges]
    for edge in _below(sent):
        if edge in wanted:
            raise GradientError(
                "A backward pass of plain autograd was asked for the gradient of "
                f"{_named(wanted[edge])}, which went to another worker, and the output depends on "
                f"what came back from worker {received[0].source.worker}. It would leave that part "
                "out. Make the calls inside fxforms.distributed.context() as context_id, there "
                "write fxforms.distributed.backward(context_id, [loss]), and read the gradients of "
                "leaves by fxforms.distributed.get_gradients(context_id)."
            )


def _edges(tensors: _Tensors) -> list[GradientEdge]:
    """Where gradients of these enter the graph; torch refuses those that have none."""
    return [
        x if isinstance(x, GradientEdge) else edge_of(x)
        for x in tensors
        if isinstance(x, GradientEdge) or x.requires_grad
    ]


def _below(edges: Iterable[GradientEdge]) -> Iterator[tuple[Any, int]]:
    """Each edge ``(node, output number)`` that is reached from ``edges``, these too."""
    stack: list[tuple[Any, int]] = [(edge.node, edge.output_nr) for edge in edges]
    seen: set[tuple[Any, int]] = set()
    expanded: set[Any] = set()
    while stack:
        edge = stack.pop()
        node = edge[0]
        if node is None or edge in seen:
            continue
        seen.add(edge)
        yield edge
        if node not in expanded:
            expanded.add(node)
            stack += node.next_functions


def _and_before(latest: Iterable[SendRpcBackward]) -> Iterator[SendRpcBackward]:
    """The sends of ``latest``, and all before them."""
    seen: set[int] = set()
    for send in latest:
        at: SendRpcBackward | None = send
        while at is not None and id(at) not in seen:
            seen.add(id(at))
            yield at
            at = at.before


def _named(x: torch.Tensor | GradientEdge) -> str:
    return describe(x) if isinstance(x, torch.Tensor) else f"an edge of {x.node.name()}"
