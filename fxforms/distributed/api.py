"""What a worker calls: join a world, call functions on other workers, leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from fxforms.distributed import current, leave
from fxforms.distributed.callback import respond
from fxforms.distributed.calls import call, call_async, call_command, call_hooks
from fxforms.distributed.current import current_agent
from fxforms.distributed.futures import Future
from fxforms.distributed.options import Options, read
from fxforms.distributed.requests import UNSET_RPC_TIMEOUT, WorkerInfo
from fxforms.errors import ArgumentError

_logger = logging.getLogger("fxforms.distributed")
_DRAIN = 5.0

# Each module has a function `start`. They are imported when asked for: torch may be built without
# gloo, and grpcio is an extra.
_AGENTS = ("grpc", "local", "process_group")


def init_rpc(
    name: str,
    *,
    rank: int,
    world_size: int,
    agent: str = "process_group",
    options: Mapping[str, Any] | Options | None = None,
) -> None:
    """Make this process, or with ``agent="local"`` this thread, a worker; wait for the others.

    Args:
        name: the name of this worker, by which others call it.
        rank: its number, from 0 to ``world_size - 1``.
        world_size: how many workers there are.
        agent: ``"local"``: workers are threads of one process. ``"process_group"``: processes on a
            trusted network, over gloo. ``"grpc"``: processes on any network, over mutual TLS. The
            last two meet at the address that ``MASTER_ADDR`` and ``MASTER_PORT`` name in the
            environment, where the worker of rank 0 listens.
        options: see `fxforms.distributed.options.Options`.

    Raises:
        ArgumentError: an argument does not fit, or this is a worker already.
        RpcTimeoutError: not all workers came within ``options["init_timeout"]`` seconds.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> distributed.rpc_sync("alone", torch.add, args=(torch.ones(2), 1))
        tensor([2., 2.])
        >>> distributed.shutdown()
    """
    checked = read(options)
    if not isinstance(name, str) or not name or not 0 <= rank < world_size <= 1 << 16:
        raise ArgumentError(
            f"init_rpc({name!r}, rank={rank}, world_size={world_size}): expected a name, and a "
            "rank from 0 to world_size - 1, of at most 65,536."
        )
    if agent not in _AGENTS:
        raise ArgumentError(f"init_rpc(agent={agent!r}): expected one of {_AGENTS}.")
    current.refuse_second(name, threads=agent == "local")
    current.add(_start_of(agent)(name, rank, world_size, respond, checked))


def _start_of(agent: str) -> Any:
    """The function that starts an agent."""
    try:
        return import_module(f"fxforms.distributed.agents.{agent}").start
    except ImportError as error:
        raise ArgumentError(
            f"init_rpc(agent={agent!r}): {error}. The agent 'grpc' needs grpcio: pip install "
            "'fxforms[grpc]'; 'process_group' a torch that is built with gloo."
        ) from error


def shutdown(graceful: bool = True, timeout: float | None = None) -> None:
    """Stop being a worker. Does nothing if this is none.

    Args:
        graceful: wait until every worker that lives calls ``shutdown`` and has its answers, and
            serve the others until then. Otherwise end at once; what others asked of this worker
            fails with `WorkerLostError`.
        timeout: seconds to wait for the others; None waits as long as they live.

    Raises:
        RpcTimeoutError: not every worker called ``shutdown`` in time. This one is shut down anyway.
    """
    agent = current.find()
    if agent is None:
        return
    try:
        if graceful:
            leave.barrier(agent, "no more calls", timeout)
            leave.drain(agent.asking, _DRAIN)
            leave.barrier(agent, "no more answers", _DRAIN)
            leave.drain(agent.serving, _DRAIN)
            leave.drain(lambda: leave.staying(agent), _DRAIN)
    except ConnectionError as error:
        _logger.warning("shutdown of %r without the others: %s", agent.info.name, error)
    finally:
        agent.shutdown()
        current.remove(agent)


def rpc_async(
    to: str | int | WorkerInfo,
    func: Any,
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Future[Any]:
    """Call ``func`` on a worker; the future of what it returns.

    The caller's grad mode, default dtype and autocast go with the call.

    Args:
        to: name, rank or `WorkerInfo` of the worker.
        func: a registered function, or a built-in operator such as ``torch.add``.
        args, kwargs: plain data, tensors and RRefs.
        timeout: seconds until the future fails; the world's ``rpc_timeout`` unless given.

    Returns:
        A future; ``wait()`` gives the value. It ends with `RemoteError` where the function raised,
        `RpcTimeoutError` or `WorkerLostError`.

    Raises:
        ArgumentError: the worker is unknown or ``func`` not registered.
        MessageError: an argument cannot be sent.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> future = distributed.rpc_async("alone", torch.mul, args=(torch.ones(2), 3))
        >>> future.wait()
        tensor([3., 3.])
        >>> distributed.shutdown()
    """
    agent = current_agent()
    worker = agent.worker(to)
    hooked = _hooked(worker, func, args, kwargs, timeout)
    if hooked is not None:
        return hooked
    command = call_command("rpc_async", func, args, kwargs)
    return call_async(agent, worker, command, timeout, _value)


def _hooked(worker: WorkerInfo, *call: Any) -> Future[Any] | None:
    """The future of a call that one of the `call_hooks` made."""
    for hook in call_hooks:
        future = hook(worker, *call)
        if future is not None:
            return future
    return None


def rpc_sync(
    to: str | int | WorkerInfo,
    func: Any,
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Any:
    """Call ``func`` on a worker and wait for what it returns.

    Arguments and errors are those of `rpc_async`.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> distributed.rpc_sync("alone", torch.add, args=(torch.ones(2), 2))
        tensor([3., 3.])
        >>> distributed.shutdown()
    """
    agent = current_agent()
    worker = agent.worker(to)
    hooked = _hooked(worker, func, args, kwargs, timeout)
    if hooked is not None:
        return hooked.wait()
    command = call_command("rpc_sync", func, args, kwargs)
    return _value(call(agent, worker, command, timeout))


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """Name and id of a worker; of this one unless a name is given."""
    agent = current_agent()
    return agent.info if worker_name is None else agent.worker(worker_name)


def _value(answer: Any) -> Any:
    return answer.value
