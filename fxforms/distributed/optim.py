"""An optimiser of parameters that live on several workers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from fxforms.distributed.context import contexts_of
from fxforms.distributed.current import current_agent
from fxforms.distributed.registry import register
from fxforms.distributed.rref import RRef, remote
from fxforms.errors import ArgumentError, describe, name_of

_one_step = threading.Lock()  # parameters may be shared by optimisers, and by workers as threads


@register
class LocalOptimizer:
    """The part of a `DistributedOptimizer` on the worker that owns the parameters.

    Args:
        name: an optimiser of ``torch.optim``.
        parameters: RRefs of parameters that this worker owns.
        args, kwargs: what the optimiser takes beside the parameters.
    """

    def __init__(
        self, name: str, parameters: list[RRef], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self._parameters = [rref.local_value() for rref in parameters]
        kind: Any = _optimizer_class(name)
        self._optimizer = kind(self._parameters, *args, **kwargs)

    def ready(self) -> None:
        """Nothing; an owner that could not make its optimiser raises here."""

    def step(self, context_id: int) -> None:
        """Update the parameters by the gradients of a context; ``.grad`` is as before after it."""
        grads = contexts_of(current_agent()).gradients(context_id)
        with _one_step:
            before = [p.grad for p in self._parameters]
            try:
                for p in self._parameters:
                    p.grad = grads.get(p)
                self._optimizer.step()
            finally:
                for p, grad in zip(self._parameters, before):
                    p.grad = grad


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    found = getattr(torch.optim, name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ArgumentError(f"torch.optim has no optimiser {name!r}.")
    return found


class DistributedOptimizer:
    """One optimiser of ``torch.optim`` for parameters on any workers.

    Each owner gets an optimiser of its own parameters; `step` has all of them take a step at once.
    As ``torch.distributed.optim.DistributedOptimizer``.

    Args:
        optimizer_class: a class of ``torch.optim``.
        params_rref: RRefs of the parameters, each a tensor that needs a gradient.
        args, kwargs: what the class takes beside the parameters: numbers and plain data.

    Raises:
        ArgumentError: the class is not one of ``torch.optim``, or an entry is no RRef.
        RemoteError: an owner could not make its optimiser.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> sgd = distributed.DistributedOptimizer(torch.optim.SGD, [distributed.RRef(w)], lr=0.5)
        >>> with distributed.context() as context_id:
        ...     distributed.backward(context_id, [(w * w).sum()])
        ...     sgd.step(context_id)
        >>> w
        tensor([0., 0.], requires_grad=True)
        >>> distributed.shutdown()
    """

    def __init__(
        self,
        optimizer_class: type[torch.optim.Optimizer],
        params_rref: Sequence[RRef],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        name = optimizer_class.__name__
        if getattr(torch.optim, name, None) is not optimizer_class:
            raise ArgumentError(
                f"DistributedOptimizer({name_of(optimizer_class)}): expected a class of "
                "torch.optim; the workers know no other."
            )
        owners: dict[int, list[RRef]] = {}
        for index, rref in enumerate(params_rref):
            if not isinstance(rref, RRef):
                raise ArgumentError(
                    f"DistributedOptimizer: params_rref[{index}] is {describe(rref)}, expected an "
                    "RRef of a parameter. fxforms.distributed.RRef(p) makes one on its owner."
                )
            owners.setdefault(rref.owner().id, []).append(rref)
        self._local = [
            remote(owner, LocalOptimizer, (name, rrefs, list(args), kwargs))
            for owner, rrefs in owners.items()
        ]
        for optimizer in self._local:
            optimizer.rpc_sync().ready()

    def step(self, context_id: int) -> None:
        """Update every parameter by the gradients that `backward` accumulated in a context.

        A parameter without a gradient there stays as it is.

        Raises:
            RemoteError: the optimiser of an owner raised.
            RpcTimeoutError, WorkerLostError: an owner does not answer, or is gone.
        """
        steps = [optimizer.rpc_async().step(context_id) for optimizer in self._local]
        for step in steps:
            step.wait()
