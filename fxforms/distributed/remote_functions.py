"""``remote_function``: a function on another worker as one that every transform takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import is_atom, leaves
from fxforms.distributed import remote_nodes
from fxforms.distributed.calls import arguments, call_hooks
from fxforms.distributed.context import current_context
from fxforms.distributed.current import current_agent
from fxforms.distributed.futures import Future
from fxforms.distributed.parts import Part
from fxforms.distributed.registry import operator_name, registered_name
from fxforms.distributed.remote_call import RemoteCall
from fxforms.distributed.requests import UNSET_RPC_TIMEOUT, WorkerInfo
from fxforms.distributed.transformed import join, split
from fxforms.errors import ArgumentError, RemoteError, RpcTimeoutError, WorkerLostError, name_of
from fxforms.functions.inline import any_dual, recorded


def remote_function(
    worker: str | int | WorkerInfo, fn: Callable[..., Any], *, timeout: float = UNSET_RPC_TIMEOUT
) -> Callable[..., Any]:
    """``fn``, run on ``worker``, as a function that composes with every transform.

    ``vmap`` sends the whole batch in one message, ``jvp`` primals and tangents in one. ``grad`` and
    plain autograd leave the graph on the worker and send cotangents to it. Derivatives of any order
    pass. What ``fn`` captures on the worker is a constant to them, as to any transform.

    Args:
        worker: name, rank or `WorkerInfo`.
        fn: a registered function, or a built-in operator of torch. It takes and returns pytrees of
            tensors and plain data.
        timeout: seconds that one call may take; the world's ``rpc_timeout`` unless given.

    Returns:
        A function of the arguments of ``fn``.

    Raises:
        ArgumentError: ``fn`` is neither registered nor an operator.

    Example:
        >>> import torch, fxforms
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> sin = distributed.remote_function("alone", torch.sin)
        >>> fxforms.vmap(fxforms.grad(sin))(torch.zeros(3))
        tensor([1., 1., 1.])
        >>> distributed.shutdown()
    """
    name = known_name(fn, "remote_function")

    def remote(*args: Any, **kwargs: Any) -> Any:
        call, operands = _prepared(current_agent().worker(worker), name, args, kwargs, timeout)
        return _result(call, call.bind(*operands))

    remote.__name__ = remote.__qualname__ = name_of(fn)
    return remote


def known_name(fn: Any, api: str) -> str:
    """The name of ``fn`` on every worker."""
    name = registered_name(fn) or operator_name(fn)
    if name is None:
        raise ArgumentError(
            f"{api}({name_of(fn)}): expected a registered function or a built-in operator of "
            "torch. Decorate it with @fxforms.distributed.register, in a module that the worker "
            "imports too."
        )
    return name


def _prepared(
    worker: WorkerInfo,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    timeout: float,
) -> tuple[RemoteCall, tuple[torch.Tensor, ...]]:
    """The call, and its operands."""
    apart = len(set(map(id, args))) == len(args)
    if apart and not kwargs and all(isinstance(x, torch.Tensor) for x in args):
        arguments, operands = None, tuple(args)
    else:
        arguments, operands = split((list(args), dict(kwargs)))
    return RemoteCall([Part(worker, name, arguments, len(operands), timeout)]), operands


def _result(call: RemoteCall, outputs: Sequence[torch.Tensor]) -> Any:
    """What the function returned, with these tensors in it."""
    return join(call.parts[0].returned[0], outputs)


def _values(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of the arguments, which mostly are the arguments themselves."""
    if not kwargs and all(map(is_atom, args)):
        return args
    return leaves((args, kwargs))


def _hook(
    worker: WorkerInfo,
    fn: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    timeout: float,
) -> Future[Any] | None:
    """Take a call of ``rpc_sync`` or ``rpc_async`` that a transform or plain autograd follows."""
    active = substrate.transforms_active()
    recording = current_context() is None and torch.is_grad_enabled()
    if not (active or recording or substrate.dual_level_open()):
        return None
    positional, named = arguments("rpc_sync", fn, args, kwargs)
    operands = tuple([x for x in _values(positional, named) if isinstance(x, torch.Tensor)])
    dual = not active and any_dual(operands)
    if not (active or dual or (recording and recorded(operands))):
        return None
    call, tensors = _prepared(worker, known_name(fn, "rpc_sync"), positional, named, timeout)
    if not (active or dual):
        future = remote_nodes.apply_plain_async(call, tensors)
        return future.then(lambda done: _result(call, done.value()))
    result: Future[Any] = Future()
    try:
        result.end(_result(call, call.bind(*tensors)))
    except (RemoteError, RpcTimeoutError, WorkerLostError) as error:  # of the call, not of its use
        result.fail(error)
    return result


call_hooks.append(_hook)
