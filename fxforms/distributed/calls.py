"""A call: from a function and its arguments to a command, and the message's way through the agent.

The autograd half adds its metadata here, through `Interceptor`, so that this half knows nothing of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fxforms.distributed import modes
from fxforms.distributed.agent import RpcAgent
from fxforms.distributed.commands import (
    PythonCall,
    PythonRemoteCall,
    RpcCommandBase,
    ScriptCall,
    ScriptRemoteCall,
)
from fxforms.distributed.futures import Future
from fxforms.distributed.message import Message
from fxforms.distributed.packing import pack_for
from fxforms.distributed.registry import operator_name, registered_name
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import (
    ArgumentError,
    MessageError,
    RemoteError,
    TraceError,
    WorkerLostError,
    describe,
    name_of,
)
from fxforms.staging.fake import tracing


class Interceptor(Protocol):
    """Sees each call of a user's function before it is sent, and each answer."""

    def outgoing(self, to: WorkerInfo, message: Message) -> Message:
        """What is sent in place of the request ``message``."""

    def incoming(self, sender: WorkerInfo, request: Message, message: Message) -> Message:
        """What is read in place of the response ``message`` to the request of `outgoing`."""

    def failed(self, to: WorkerInfo, request: Message, error: BaseException) -> None:
        """The request that `outgoing` returned ended with ``error``."""


CallHook = Callable[
    [WorkerInfo, Any, Sequence[Any] | None, Mapping[str, Any] | None, float], Future[Any] | None
]
# Each is asked first, with the arguments of rpc_async; the first that does not decline makes the
# call. So a call inside a transform becomes an instance of the operator.
call_hooks: list[CallHook] = []

_interceptors: list[Interceptor] = []


def intercept(interceptor: Interceptor) -> None:
    """Let ``interceptor`` see every call from now on, in every thread."""
    _interceptors.append(interceptor)


def call_command(
    api: str, fn: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Any:
    """The command that runs ``fn`` on a worker.

    Raises:
        ArgumentError: ``fn`` is neither a built-in operator nor registered.
    """
    cls, name = _named(api, fn)
    return cls(name, *arguments(api, fn, args, kwargs), modes.capture())


def remote_command(
    api: str,
    fn: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    ids: tuple[int, int],
) -> Any:
    """The command that runs ``fn`` on a worker and keeps the result there as RRef ``ids``."""
    cls, name = _named(api, fn)
    kept = ScriptRemoteCall if cls is ScriptCall else PythonRemoteCall
    return kept(name, *arguments(api, fn, args, kwargs), modes.capture(), *ids)


def arguments(
    api: str, fn: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a call; None stands for none.

    Raises:
        ArgumentError: they are no tuple or list, and no dict, as where ``args=(x)`` lacks a comma.
    """
    positional, named = () if args is None else args, {} if kwargs is None else kwargs
    if not isinstance(positional, (tuple, list)) or not isinstance(named, Mapping):
        raise ArgumentError(
            f"{api}({name_of(fn)}): args is {describe(args)}, kwargs {describe(kwargs)}. Expected "
            "a tuple or list and a dict; one argument x is args=(x,)."
        )
    return list(positional), dict(named)


def _named(api: str, fn: Any) -> tuple[type[ScriptCall] | type[PythonCall], str]:
    """The class of the command for ``fn``, and its name on the other worker."""
    if tracing():
        raise TraceError(
            f"{api} inside jit: the call would be made once, while jit traces, and "
            "never again. Make it outside; or jit the function on its worker; or call it by "
            "fxforms.pure_callback, which puts a call of Python into the graph."
        )
    name = registered_name(fn)
    if name is not None:
        return PythonCall, name
    name = operator_name(fn)
    if name is None:
        raise ArgumentError(
            f"{api}({name_of(fn)}): expected a registered function or a built-in operator of "
            "torch. Decorate it with @fxforms.distributed.register, in a module that the worker "
            "imports too."
        )
    return ScriptCall, name


def send_command(
    agent: RpcAgent, to: WorkerInfo, command: RpcCommandBase, timeout: float | None = None
) -> Future[RpcCommandBase]:
    """Send a command as it is; the future of the command that answers it."""
    return agent.send(to, command.to_message(), timeout, RpcCommandBase.from_message)


def ask_command(
    agent: RpcAgent, to: WorkerInfo, command: RpcCommandBase, timeout: float | None = None
) -> RpcCommandBase:
    """Send a command as it is, and wait for the command that answers it."""
    return RpcCommandBase.from_message(agent.ask(to, command.to_message(), timeout))


def call(
    agent: RpcAgent, to: WorkerInfo, command: RpcCommandBase, timeout: float | None
) -> RpcCommandBase:
    """Send a call of a user's function past the interceptors, and wait for the answer."""
    packed, forks = pack_for(agent, to, command)
    message = _outgoing(to, packed)
    try:
        response = agent.ask(to, message, timeout)
    except BaseException as error:
        _failed(agent, to, message, forks, error)
        raise
    return RpcCommandBase.from_message(_incoming(to, message, response))


def call_async(
    agent: RpcAgent,
    to: WorkerInfo,
    command: RpcCommandBase,
    timeout: float | None,
    read: Callable[[RpcCommandBase], Any],
) -> Future[Any]:
    """Send a call of a user's function past the interceptors; the future of ``read(answer)``."""
    packed, forks = pack_for(agent, to, command)
    message = _outgoing(to, packed)

    def answer(response: Message) -> Any:
        return read(RpcCommandBase.from_message(_incoming(to, message, response)))

    def ended(future: Any) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            _failed(agent, to, message, forks, error)

    future = agent.send(to, message, timeout, answer)
    if _interceptors or forks:
        future.add_done_callback(ended)
    return future


def _outgoing(to: WorkerInfo, message: Message) -> Message:
    for interceptor in _interceptors:
        message = interceptor.outgoing(to, message)
    return message


def _incoming(sender: WorkerInfo, request: Message, message: Message) -> Message:
    for interceptor in reversed(_interceptors):
        message = interceptor.incoming(sender, request, message)
    return message


def _failed(
    agent: RpcAgent, to: WorkerInfo, request: Message, forks: list[int], error: BaseException
) -> None:
    unsent = isinstance(error, (MessageError, WorkerLostError))
    if forks and unsent and not isinstance(error, RemoteError):
        for callback in agent.on_unsent:
            callback(forks)
    for interceptor in _interceptors:
        interceptor.failed(to, request, error)
