"""References to values on other workers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import leaves
from fxforms.distributed.agent import Origin
from fxforms.distributed.api import rpc_async, rpc_sync
from fxforms.distributed.callback import handles, run_call
from fxforms.distributed.calls import call, call_async, remote_command
from fxforms.distributed.codec import RREF, extend
from fxforms.distributed.commands import (
    PythonRemoteCall,
    PythonRRefFetchCall,
    PythonRRefFetchRet,
    RemoteRet,
    ScriptRemoteCall,
    ScriptRRefFetchCall,
    ScriptRRefFetchRet,
)
from fxforms.distributed.current import current_agent
from fxforms.distributed.failures import error_of, exception_response
from fxforms.distributed.functions import SendRpcBackward
from fxforms.distributed.futures import Future
from fxforms.distributed.message import MessageType
from fxforms.distributed.packing import note_fork, receiver
from fxforms.distributed.registry import register, registered_name
from fxforms.distributed.requests import UNSET_RPC_TIMEOUT, WorkerInfo
from fxforms.distributed.rref_table import RRefTable, Use, table_of
from fxforms.errors import ArgumentError, MessageError


class RRef:
    """A reference to a value on one worker, its owner, that any worker may hold and pass on.

    The owner keeps the value as long as an RRef to it lives on any worker. `remote` makes one, and
    ``RRef(value)`` one of a value of this worker.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> rref = distributed.remote("alone", torch.add, args=(torch.ones(2), 1))
        >>> rref.to_here()
        tensor([2., 2.])
        >>> distributed.shutdown()
    """

    def __init__(self, value: Any) -> None:
        agent = current_agent()
        table = table_of(agent)
        rref_id, fork_id = agent.new_id(), agent.new_id()
        table.add_fork(rref_id, fork_id, agent.info.id).value.end(value)
        confirmed: Future[Any] = Future()
        confirmed.end(None)
        use = table.add_use(rref_id, fork_id, agent.info, False, confirmed)
        self._hold(table, use, confirmed, [value])

    def _hold(
        self, table: RRefTable, use: Use, confirmed: Future[Any], made_of: Sequence[Any] = ()
    ) -> None:
        self._table, self._use, self._confirmed = table, use, confirmed
        self._made_of = _sent(table, use.rref_id, made_of)
        weakref.finalize(self, table.released.put, use).atexit = False

    @classmethod
    def _of(
        cls, table: RRefTable, use: Use, confirmed: Future[Any], made_of: Sequence[Any] = ()
    ) -> RRef:
        """The RRef that stands for ``use``."""
        rref = object.__new__(cls)
        rref._hold(table, use, confirmed, made_of)
        return rref

    def owner(self) -> WorkerInfo:
        """The worker that has the value."""
        return self._use.owner

    def owner_name(self) -> str:
        """The name of the worker that has the value."""
        return self._use.owner.name

    def is_owner(self) -> bool:
        """True if the value is on this worker."""
        return self._use.owner.id == self._table.agent.info.id

    def confirmed_by_owner(self) -> bool:
        """True if the owner knows of this RRef."""
        return self._confirmed.done() and self._confirmed.exception() is None

    def local_value(self) -> Any:
        """The value itself, on the worker that has it.

        Raises:
            ArgumentError: this is another worker.
        """
        if not self.is_owner():
            raise ArgumentError(
                f"local_value(): the value is on worker {self.owner_name()!r}, this is worker "
                f"{self._table.agent.info.name!r}. Use to_here(), or call a function there."
            )
        return self._owned(UNSET_RPC_TIMEOUT)

    def to_here(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """A copy of the value; on its owner the value itself.

        Args:
            timeout: seconds until this fails; the world's ``rpc_timeout`` unless given.

        Raises:
            RemoteError: the function that should make the value raised.
            RpcTimeoutError, WorkerLostError: it cannot be had.
        """
        if self.is_owner():
            return self._owned(timeout)
        agent, use = self._table.agent, self._use
        self._wait(self._confirmed, timeout)
        fetch = ScriptRRefFetchCall if use.script else PythonRRefFetchCall
        answer: Any = call(agent, use.owner, fetch(use.rref_id), timeout)
        return answer.value

    def _owned(self, timeout: float) -> Any:
        self._wait(self._confirmed, timeout)  # before, a call of this worker to itself may not run
        owned = self._table.owned.get(self._use.rref_id)
        if owned is None:
            raise ArgumentError("The worker that had the value of this RRef is shut down.")
        return self._wait(owned.value, timeout)

    def _wait(self, future: Future[Any], timeout: float) -> Any:
        return self._table.agent.wait(future, self._use.owner, timeout)

    def rpc_sync(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """Methods of the value, run by its owner: ``rref.rpc_sync().method(...)``.

        The class of the value must be registered, unless it is a tensor.
        """
        return _Proxy(self, rpc_sync, timeout)

    def rpc_async(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """As `rpc_sync`; a method gives the future of its result."""
        return _Proxy(self, rpc_async, timeout)

    def remote(self, timeout: float = UNSET_RPC_TIMEOUT) -> Any:
        """As `rpc_sync`; a method gives an RRef to its result."""
        return _Proxy(self, remote, timeout)

    def __repr__(self) -> str:
        return f"RRef(owner={self.owner_name()!r}, id={self._use.rref_id:#x})"

    def __reduce__(self) -> Any:
        raise MessageError("An RRef travels as an argument or a result of a call only.")


class _Proxy:
    """The methods of a value on its owner, each as a call by ``how``."""

    def __init__(self, rref: RRef, how: Callable[..., Any], timeout: float) -> None:
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            parts = (self._rref, name, list(args), kwargs)
            return self._how(self._rref.owner(), call_method, parts, None, self._timeout)

        return method


@register
def call_method(rref: RRef, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a method of the value of ``rref``, which this worker has, returns."""
    value = rref.local_value()
    kinds = type(value).__mro__
    known = isinstance(value, torch.Tensor) or any(registered_name(kind) for kind in kinds)
    if name.startswith("_") or not known:
        raise ArgumentError(
            f"{type(value).__name__}.{name} is not for other workers: only public methods are, of "
            "tensors and of classes that are registered with @fxforms.distributed.register."
        )
    return getattr(value, name)(*args, **kwargs)


def remote(
    to: str | int | WorkerInfo,
    fn: Any,
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> RRef:
    """Call ``fn`` on a worker and leave the result there.

    Args:
        to: name, rank or `WorkerInfo` of the worker, which will own the result.
        fn: a registered function or class, or a built-in operator of torch.
        args, kwargs: plain data, tensors and RRefs.
        timeout: seconds within which the worker must have the result.

    Returns:
        The reference, at once. An error of ``fn`` is raised where the value is asked for.

    Raises:
        ArgumentError: the worker is unknown or ``fn`` not registered.
        MessageError: an argument cannot be sent.

    Example:
        >>> import torch
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> distributed.remote("alone", torch.ones, args=(2,)).to_here()
        tensor([1., 1.])
        >>> distributed.shutdown()
    """
    agent = current_agent()
    owner, table = agent.worker(to), table_of(agent)
    ids = agent.new_id(), agent.new_id()
    command = remote_command("remote", fn, args, kwargs, ids)
    confirmed = call_async(agent, owner, command, timeout, lambda answer: None)
    script = isinstance(command, ScriptRemoteCall)
    made_of = leaves((command.args, command.kwargs)) if torch.is_grad_enabled() else ()
    return RRef._of(table, table.add_use(*ids, owner, script, confirmed), confirmed, made_of)


def _sent(table: RRefTable, rref_id: int, made_of: Sequence[Any]) -> SendRpcBackward | None:
    """What has a gradient in what an RRef is made of, noted as long as it lives."""
    tensors = [x for x in made_of if isinstance(x, torch.Tensor) and x.requires_grad]
    others = [x._made_of for x in made_of if isinstance(x, RRef) and x._made_of is not None]
    if not (tensors or others) or substrate.transforms_active():
        return None
    sent = table.made_of[rref_id] = SendRpcBackward(rref_id, tensors, None)
    for other in others:
        sent.edges += other.edges
    return sent


@handles(MessageType.SCRIPT_REMOTE_CALL, MessageType.PYTHON_REMOTE_CALL)
def _remote_call(command: ScriptRemoteCall | PythonRemoteCall, origin: Origin) -> RemoteRet:
    table = table_of(origin.agent)
    owned = table.add_fork(command.rref_id, command.fork_id, origin.sender.id)
    try:
        owned.value.end(run_call(command))
    except BaseException as error:
        # As it would arrive elsewhere: the traceback would keep the arguments.
        owned.value.fail(error_of(exception_response(error, 0), origin.agent.info.name))
        raise
    return RemoteRet(command.rref_id, command.fork_id)


def _fetched(command: ScriptRRefFetchCall | PythonRRefFetchCall, origin: Origin) -> Any:
    owned = table_of(origin.agent).owned.get(command.rref_id)
    if owned is None:
        raise ArgumentError(f"Worker {origin.agent.info.name!r} has no such value any more.")
    return origin.agent.wait(owned.value, origin.agent.info, UNSET_RPC_TIMEOUT)


@handles(MessageType.SCRIPT_RREF_FETCH_CALL)
def _fetch_script(command: ScriptRRefFetchCall, origin: Origin) -> ScriptRRefFetchRet:
    return ScriptRRefFetchRet(_fetched(command, origin))


@handles(MessageType.PYTHON_RREF_FETCH_CALL)
def _fetch_python(command: PythonRRefFetchCall, origin: Origin) -> PythonRRefFetchRet:
    return PythonRRefFetchRet(_fetched(command, origin))


def _pack(rref: RRef) -> list[Any]:
    """A child of ``rref``, for the worker that the message is for."""
    table, use, to = rref._table, rref._use, receiver()
    if to is None or table.agent is not current_agent():
        raise MessageError(f"{rref!r} travels as an argument or a result of its worker's calls.")
    child = table.fork(use, to.id)
    note_fork(child)
    return [use.rref_id, child, use.owner.id, table.agent.info.id, use.script]


def _unpack(parts: list[Any]) -> RRef:
    rref_id, fork_id, owner, parent, script = parts
    agent = current_agent()
    table = table_of(agent)
    confirmed: Future[Any] = Future()
    ids = int(rref_id), int(fork_id)
    use = table.add_use(*ids, agent.worker(owner), bool(script), confirmed)
    rref = RRef._of(table, use, confirmed)
    table.adopt(use, agent.worker(parent), confirmed)
    return rref


extend(RREF, RRef, _pack, _unpack)
