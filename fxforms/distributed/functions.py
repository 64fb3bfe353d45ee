"""The ends of an edge of the autograd graph that crosses workers: a send and a recv function."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fxforms import _substrate as substrate
from fxforms.errors import GradientError

NO_CONTEXT = -1  # the context id of a call that is recorded nowhere


class SendRpcBackward:
    """Where the gradients of tensors that were sent enter the graph of this worker.

    Attributes:
        message_id: pairs this with the recv function on the other worker.
        edges: one for each tensor that was sent and needs a gradient.
        before: the one that this worker made before it in the context.
    """

    __slots__ = ("__weakref__", "before", "edges", "message_id")

    def __init__(
        self, message_id: int, tensors: Sequence[torch.Tensor], before: SendRpcBackward | None
    ) -> None:
        self.message_id, self.before = message_id, before
        self.edges: list[GradientEdge] = [edge_of(x) for x in tensors]


def edge_of(tensor: torch.Tensor) -> GradientEdge:
    """Where a gradient of ``tensor`` enters the graph; it owns the graph.

    As torch's own, which takes its time to treat every node as one written in Python.
    """
    node: Any = tensor.grad_fn
    if node is None:
        with torch.enable_grad():
            view: Any = tensor.view_as(tensor).grad_fn
        return GradientEdge(view.next_functions[0][0], 0)
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return get_gradient_edge(tensor)
    return GradientEdge(node, tensor.output_nr)


@dataclass(frozen=True, slots=True)
class Source:
    """Where received tensors came from.

    Attributes:
        worker: the id of the sender.
        message_id: pairs the recv function with the send function there.
        context_id: the autograd context of the call.
        count: how many tensors need a gradient.
    """

    worker: int
    message_id: int
    context_id: int
    count: int


class RecvRpcBackward(torch.autograd.Function):
    """Where the gradients of tensors that were received leave the graph of this worker.

    The distributed engine stops here and sends them; an engine that knows one worker cannot.
    ``earlier`` is the last send function of this worker before, on which they may depend.
    """

    @staticmethod
    def forward(
        ctx: Any,
        source: Source,
        earlier: SendRpcBackward | None,
        tensors: list[torch.Tensor],
        _: torch.Tensor,
    ) -> Any:
        """``tensors`` as they are; the last argument has them need a gradient."""
        ctx.source, ctx.earlier = source, earlier
        if earlier is not None:
            recvs_after_sends.add(ctx)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> NoReturn:
        """Called by plain autograd alone."""
        source = ctx.source
        if source.context_id == NO_CONTEXT:
            raise GradientError(
                f"A backward pass reached a tensor that came from worker {source.worker} by a call "
                "outside of a distributed autograd context, and which needs a gradient there. Make "
                "the call and the backward pass inside fxforms.distributed.context()."
            )
        raise GradientError(
            f"A backward pass of plain autograd reached a tensor that came from worker "
            f"{source.worker} in the distributed autograd context {source.context_id}, and goes no "
            "further. Inside the context, write fxforms.distributed.backward(context_id, [loss]) "
            "in place of loss.backward()."
        )


class Inputs(torch.autograd.Function):
    """Where a graph begins that is differentiated apart from what its inputs came from."""

    @staticmethod
    def forward(ctx: Any, tensors: list[torch.Tensor], _: torch.Tensor) -> Any:
        """``tensors`` as they are, but no leaves, so that they can be changed in place."""
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None]:
        """Nothing: the gradients are asked for here."""
        return None, None


recvs_after_sends: weakref.WeakSet[Any] = weakref.WeakSet()
RECV: Any = RecvRpcBackward._backward_cls
_apply = substrate.autograd_apply(RecvRpcBackward)
_inputs = substrate.autograd_apply(Inputs)
_NEEDS_GRADIENT = torch.empty(0, requires_grad=True)


def as_inputs(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """``tensors`` as the inputs of a graph of their own."""
    with torch.enable_grad():
        return _inputs(list(tensors), _NEEDS_GRADIENT)  # type: ignore[no-any-return]


def attach_recv(
    source: Source,
    earlier: SendRpcBackward | None,
    tensors: Sequence[torch.Tensor],
    positions: Sequence[int],
) -> tuple[torch.Tensor, ...]:
    """``tensors``, those at ``positions`` as outputs of a recv function."""
    chosen = [tensors[i] for i in positions]
    if not chosen:
        return tuple(tensors)
    with torch.enable_grad():
        received = dict(zip(positions, _apply(source, earlier, chosen, _NEEDS_GRADIENT)))
    return tuple([received.get(i, x) for i, x in enumerate(tensors)])
