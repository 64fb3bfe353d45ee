"""An optimiser of parameters that live on several workers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from inspect import Parameter, signature
from typing import Any

import torch

from fxforms.distributed.context import contexts_of
from fxforms.distributed.current import current_agent
from fxforms.distributed.registry import register
from fxforms.distributed.rref import RRef, remote
from fxforms.errors import ArgumentError, describe, name_of

Group = tuple[list[RRef], dict[str, Any]]  # parameters and their options

_one_step = threading.Lock()  # parameters may be shared by optimisers, and by workers as threads


@register
class LocalOptimizer:
    """The part of a `DistributedOptimizer` on the worker that owns the parameters.

    Args:
        name: an optimiser of ``torch.optim``.
        groups: of each parameter group, RRefs of those that this worker owns, and its options.
        args, kwargs: what the optimiser takes beside the parameters.
    """

    def __init__(
        self, name: str, groups: list[Group], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        kind: Any = _optimizer_class(name)
        own = [{**options, "params": [p.local_value() for p in rrefs]} for rrefs, options in groups]
        self._parameters = [p for group in own for p in group["params"]]
        self._optimizer = kind(own, *args, **kwargs)

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
        params_rref: RRefs of the parameters, each a tensor that needs a gradient; or parameter
            groups, dicts with ``"params"`` and options of their own, as ``torch.optim`` has them.
        args, kwargs: what the class takes beside the parameters: numbers and plain data.

    Raises:
        ArgumentError: the class is not one of ``torch.optim``, or one that needs a closure, as
            LBFGS does; or an entry is no RRef.
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
        params_rref: Sequence[RRef] | Sequence[dict[str, Any]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        name = _checked_name(optimizer_class)
        owners: dict[int, list[Group]] = {}
        for rrefs, options in _groups(params_rref):
            for owner in dict.fromkeys(rref.owner().id for rref in rrefs):
                own = [rref for rref in rrefs if rref.owner().id == owner]
                owners.setdefault(owner, []).append((own, options))
        self._local = [
            remote(owner, LocalOptimizer, (name, groups, list(args), kwargs))
            for owner, groups in owners.items()
        ]
        for optimizer in self._local:
            optimizer.rpc_sync().ready()

    def step(self, context_id: int) -> None:
        """Update every parameter by the gradients that `backward` accumulated in a context.

        A parameter without a gradient there stays as it is.

        Raises:
            ArgumentError: there is no such context on this worker, or it has ended.
            RemoteError: the optimiser of an owner raised.
            RpcTimeoutError, WorkerLostError: an owner does not answer, or is gone.
        """
        contexts_of(current_agent()).get(context_id)
        steps = [optimizer.rpc_async().step(context_id) for optimizer in self._local]
        for step in steps:
            step.wait()


def _checked_name(kind: Any) -> str:
    """The name of ``kind``, an optimiser that a worker can make by it and take a step of."""
    name: str = getattr(kind, "__name__", "")
    known: Any = getattr(torch.optim, name, None)
    if known is not kind or not issubclass(known, torch.optim.Optimizer):
        raise ArgumentError(
            f"DistributedOptimizer({name_of(kind)}): expected a class of torch.optim; the workers "
            "know no other."
        )
    if signature(known.step).parameters["closure"].default is Parameter.empty:
        raise ArgumentError(
            f"DistributedOptimizer({name}): a step of it calls a closure again and again, and the "
            "loss is not of one worker. Use an optimiser whose step needs none."
        )
    return name


def _groups(entries: Any) -> list[Group]:
    """The parameter groups that ``entries`` are; RRefs alone are one."""
    given: list[Any] = [entries] if isinstance(entries, (RRef, dict)) else list(entries)
    if not given:
        raise ArgumentError("DistributedOptimizer: there are no parameters.")
    if not all(isinstance(entry, dict) for entry in given):
        return [(_rrefs(given, "params_rref"), {})]
    groups = []
    for index, group in enumerate(given):
        options = dict(group)
        name = f"params_rref[{index}]['params']"
        params = options.pop("params", ())
        groups.append(
            (_rrefs([params] if isinstance(params, RRef) else list(params), name), options)
        )
    return groups


def _rrefs(values: list[Any], name: str) -> list[RRef]:
    for index, rref in enumerate(values):
        if not isinstance(rref, RRef):
            raise ArgumentError(
                f"DistributedOptimizer: {name}[{index}] is {describe(rref)}, expected an RRef of a "
                "parameter. fxforms.distributed.RRef(p) makes one on its owner."
            )
    return values
