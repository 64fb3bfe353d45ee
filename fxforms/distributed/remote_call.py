"""A remote function as an instance of the operator, and what each transform makes of it.

A transform rewrites the remote function, so the whole batch of a vmap, and a primal with its
tangent, are one message. For reverse mode see NOTE [residuals stay on the worker].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms.distributed import remote_nodes
from fxforms.distributed.calls import call, call_command
from fxforms.distributed.context import current_context
from fxforms.distributed.current import current_agent
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.transformed import Tensors, Transform, evaluate, is_inexact
from fxforms.functions.bind import bind


class RemoteCall:
    """One call of a function on a worker, under transforms: an instance of the operator.

    Its operands are the tensors of the call, its outputs those that the function returns.

    Attributes:
        returned: what the function returned, with slots for tensors; one entry, shared with every
            call that this one is turned into.
    """

    def __init__(
        self,
        worker: WorkerInfo,
        name: str,
        arguments: Any,
        timeout: float,
        transforms: Sequence[Transform] = (),
        returned: list[Any] | None = None,
    ) -> None:
        self.__name__ = f"{name} on worker {worker.name!r}"
        self.worker, self.name, self.arguments = worker, name, arguments
        self.timeout = timeout
        self.transforms = list(transforms)
        self.returned: list[Any] = [None] if returned is None else returned

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        outputs: Tensors = bind(self, operands)
        return outputs

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """The call, with no level active."""
        if remote_nodes.has_tangents(operands):
            return remote_nodes.with_tangents(self, operands)
        if current_context() is None and requires_grad(operands):
            return remote_nodes.apply_plain(self, operands)
        parts = (self.name, self.arguments, self.transforms, *operands)
        command = call_command("remote_function", evaluate, parts, None)
        answer: Any = call(current_agent(), self.worker, command, self.timeout)
        self.returned[0], outputs = answer.value
        return outputs  # type: ignore[no-any-return]

    def grad_rule(self, *operands: torch.Tensor) -> Tensors:
        """A node of the top level's graph."""
        return remote_nodes.apply_at_level(self, operands)

    def jvp_rule(
        self, primals: Tensors, tangents: tuple[torch.Tensor | None, ...]
    ) -> tuple[Any, Any]:
        """One call with primals and tangents."""
        mask = [t is not None for t in tangents]
        given = [t for t in tangents if t is not None]
        results = self.under("jvp", mask).bind(*primals, *given)
        count = primal_count(results)
        moving = iter(results[count:])
        outputs = results[:count]
        return outputs, tuple([next(moving) if is_inexact(x) else None for x in outputs])

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """One call with the whole batch."""
        mapped = self.under("vmap", list(in_dims), info.randomness, info.batch_size)
        return mapped.bind(*operands), 0

    def under(self, *transform: Any) -> RemoteCall:
        """This call under one more transform."""
        transforms = [*self.transforms, list(transform)]
        return RemoteCall(
            self.worker, self.name, self.arguments, self.timeout, transforms, self.returned
        )


def requires_grad(tensors: Sequence[torch.Tensor]) -> bool:
    """True if plain reverse mode follows one of ``tensors``."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def primal_count(results: Sequence[torch.Tensor]) -> int:
    """How many of ``results`` are outputs, before the tangents of the inexact ones."""
    count = total = 0
    while total < len(results):
        total += 2 if is_inexact(results[count]) else 1
        count += 1
    return count
