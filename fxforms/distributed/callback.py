"""What every agent does with a request: read it, run it, wrap the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from fxforms.distributed import modes
from fxforms.distributed.agent import Origin, RpcAgent, prepare
from fxforms.distributed.commands import (
    PythonCall,
    PythonRemoteCall,
    PythonRet,
    RpcCommandBase,
    ScriptCall,
    ScriptRemoteCall,
    ScriptRet,
)
from fxforms.distributed.failures import exception_response
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.packing import pack_for
from fxforms.distributed.registry import is_own, operator, registered
from fxforms.errors import MessageError, RpcError

Handler = Callable[[Any, Origin], RpcCommandBase]
_H = TypeVar("_H", bound=Handler)

_handlers: dict[MessageType, Handler] = {}


def handles(*types: MessageType) -> Callable[[_H], _H]:
    """Decorates the function that answers requests of these types.

    It gets the command and its origin and returns the command that answers it, or raises.
    """

    def add(handler: _H) -> _H:
        for type in types:
            if type in _handlers:
                raise ValueError(f"{type.name} has a handler already")
            _handlers[type] = handler
        return handler

    return add


def run(message: Message, origin: Origin) -> RpcCommandBase:
    """The answer to a request; raises what its handler raises."""
    handler = _handlers.get(message.type)
    if handler is None:
        raise MessageError(f"A {message.type.name} message is no request that is answered here.")
    return handler(RpcCommandBase.from_message(message), origin)


def answer(message: Message, origin: Origin) -> Message:
    """The message that answers a request; raises what its handler raises."""
    return pack_for(origin.agent, origin.sender, run(message, origin))[0]


def respond(origin: Origin, message: Message) -> Message:
    """The response to a request, an EXCEPTION where it raised; has the request's id."""
    try:
        response = answer(message, origin)
    except BaseException as error:  # SystemExit too: a peer cannot end this process
        return exception_response(error, message.id)
    response.id = message.id
    return response


def drop(message: Message) -> None:
    """Read a message that nobody takes, so that the RRefs in it are released."""
    with suppress(RpcError):
        command = RpcCommandBase.from_message(message)
        inner = getattr(command, "wrapped", None)
        if inner is not None:
            RpcCommandBase.from_message(inner)


@prepare
def _prepare(agent: RpcAgent) -> None:
    agent.on_unread.append(drop)


def run_call(command: ScriptCall | PythonCall | ScriptRemoteCall | PythonRemoteCall) -> Any:
    """What the function that ``command`` names returns.

    It runs in the caller's modes, unless it has no use for them: the default dtype is the whole
    process's, and a barrier of ``shutdown`` would hold it until the last worker comes.
    """
    script = isinstance(command, (ScriptCall, ScriptRemoteCall))
    function = operator(command.name) if script else registered(command.name)
    if is_own(function):
        return function(*command.args, **command.kwargs)
    with modes.Applied(command.mode):
        return function(*command.args, **command.kwargs)


@handles(MessageType.SCRIPT_CALL)
def _script_call(command: ScriptCall, origin: Origin) -> ScriptRet:
    return ScriptRet(run_call(command))


@handles(MessageType.PYTHON_CALL)
def _python_call(command: PythonCall, origin: Origin) -> PythonRet:
    return PythonRet(run_call(command))
