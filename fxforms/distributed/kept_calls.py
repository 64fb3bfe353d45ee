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
from typing import Any, Protocol

import torch

from fxforms import _substrate as substrate
from fxforms.distributed import residuals
from fxforms.distributed.calls import call, call_async, call_command
from fxforms.distributed.context import current_context
from fxforms.distributed.current import current_agent
from fxforms.distributed.futures import Future
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.residuals import Handle
from fxforms.distributed.transformed import Tensors, Transform
from fxforms.functions.bind import bind
from fxforms.functions.inline import tracked

_VMAP = int(substrate.TransformType.Vmap)


class Source(Protocol):
    """What is asked of the call that is differentiated."""

    __name__: str
    worker: WorkerInfo
    name: str
    arguments: Any
    timeout: float
    transforms: list[Transform]
    returned: list[Any]


def differentiated(operands: Sequence[torch.Tensor]) -> bool:
    """True if a level now active differentiates, or plain autograd or a context follows."""
    levels = substrate.level_transforms() if substrate.transforms_active() else []
    if any(level != _VMAP for level in levels) or current_context() is not None:
        return True
    return tracked(tuple(operands))


def ask(source: Source, function: Callable[..., Any], parts: tuple[Any, ...]) -> Any:
    """What ``function(*parts)`` gives on the worker of ``source``; nothing is recorded."""
    with torch.no_grad():
        command = call_command("remote_function", function, parts, None)
        answer: Any = call(current_agent(), source.worker, command, source.timeout)
    return answer.value


class KeptCall:
    """A call whose graph stays on the worker; the levels below, if any, are vmaps.

    Attributes:
        mask: the operands that are differentiated.
        handle: names the graph, after the call.
        moving: which outputs have a derivative.
        captured: True if a tensor that the function captured should get a gradient.
        levels: the number and batch size of each vmap level below, the highest first.
        marker: an operand of the backward call that every vmap level below sees as batched; empty
            if there is none.
    """

    def __init__(self, source: Source, mask: Sequence[bool]) -> None:
        self.__name__ = source.__name__
        self.source, self.mask = source, list(mask)
        self.handle: Handle | None = None
        self.moving: list[bool] = []
        self.captured = False
        self.marker: tuple[torch.Tensor, ...] = ()
        self.levels: list[tuple[int, int]] = []
        self._maps: list[Transform] = []

    def forward(self, operands: Tensors) -> Tensors:
        """The outputs; sets all attributes."""
        outputs = self.bind(*operands)
        if self.levels:
            marker: Any = sum(x.new_zeros((), dtype=torch.bool) for x in operands)
            self.marker = (marker,)
        return outputs

    def forward_async(self, operands: Tensors, read: Callable[[Tensors], Any]) -> Future[Any]:
        """The future of ``read`` of the outputs, with no level active."""
        agent, source = current_agent(), self.source
        with torch.no_grad():
            parts = self._parts(operands)
            command = call_command("rpc_async", residuals.keep, parts, None)
            return call_async(
                agent,
                source.worker,
                command,
                source.timeout,
                lambda answer: read(self._take(answer.value)),  # type: ignore[attr-defined]
            )

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """The call, with no level active."""
        return self._take(ask(self.source, residuals.keep, self._parts(operands)))

    def _parts(self, operands: Tensors) -> tuple[Any, ...]:
        source, caller = self.source, current_agent().info.id
        fixed = source.name, source.arguments, source.transforms, self._maps, self.mask
        return (caller, *fixed, *operands)

    def _take(self, answer: Any) -> Tensors:
        id, self.moving, self.captured, self.source.returned[0], outputs = answer
        if any(self.moving):
            self.handle = Handle(current_agent(), self.source.worker, id)
        return outputs  # type: ignore[no-any-return]

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        primitive: Any = self
        outputs: Tensors = bind(primitive, operands)
        return outputs

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """The call with the whole batch."""
        self.levels.append((substrate.level_depth() + 1, info.batch_size))
        self._maps.append(["vmap", list(in_dims), info.randomness, info.batch_size])
        return self.bind(*operands), 0

    def backward(self, cotangents: Sequence[torch.Tensor]) -> Tensors:
        """The gradients at one cotangent for each output that has a derivative."""
        retain = substrate.keeps_graph()
        return PullCall(self, retain).bind(*self.marker, *cotangents)


class PullCall:
    """The backward pass of a kept graph: of a marker and cotangents, to gradients.

    Each vmap level adds its batch dim in front, whether the graph has it too or not.
    """

    def __init__(self, kept: KeptCall, retain: bool, levels: Sequence[list[Any]] = ()) -> None:
        self.__name__ = f"the backward pass of {kept.__name__}"
        self._kept, self._retain, self._levels = kept, retain, list(levels)

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        primitive: Any = self
        gradients: Tensors = bind(primitive, operands)
        return gradients

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """The call, with no level active."""
        handle = self._kept.handle
        assert handle is not None
        cotangents = operands[len(self._kept.marker) :]
        parts = (handle.id, self._levels, self._retain, *cotangents)
        gradients: Tensors = ask(self._kept.source, residuals.pull, parts)
        if not self._retain:
            handle.released()
        return gradients

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """The gradients of the whole batch."""
        own = (substrate.level_depth() + 1, info.batch_size) in self._kept.levels
        has = [dim is not None for dim in in_dims[len(self._kept.marker) :]]
        level = [info.batch_size, own, has]
        fronted = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(operands, in_dims)]
        return PullCall(self._kept, self._retain, [level, *self._levels]).bind(*fronted), 0
