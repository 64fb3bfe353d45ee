"""What messages say: one class for each type of message, except the error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from fxforms.distributed.codec import pack, unpack
from fxforms.distributed.message import Message, MessageType
from fxforms.errors import MessageError, describe

Mode = list[Any]  # of fxforms.distributed.modes
Kind = type | tuple[type, ...]

COMMANDS: dict[MessageType, type[RpcCommandBase]] = {}


class RpcCommandBase:
    """The body of a message. A subclass is a dataclass whose fields are plain data and tensors.

    `type` is the message type, `kinds` the class of each field, in order, and `idempotent` is True
    if a second run changes nothing, so that the request may be sent again.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    type: ClassVar[MessageType]
    kinds: ClassVar[tuple[Kind, ...]] = ()
    idempotent: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "type" in vars(cls):
            COMMANDS[cls.type] = cls

    def to_message(self) -> Message:
        """This command as a message, without an id."""
        payload, tensors = pack([getattr(self, name) for name in self.__match_args__])
        return Message(payload, tensors, self.type)

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """The command in ``message``.

        Raises:
            MessageError: it is no command of this class.
        """
        actual = COMMANDS.get(message.type)
        if actual is None or not issubclass(actual, cls):
            raise MessageError(f"A {message.type.name} message is no {cls.__name__}.")
        values = unpack(message.payload, message.tensors)
        return actual._from_parts(checked(values, actual.kinds, message.type), message)

    @classmethod
    def _from_parts(cls, values: list[Any], message: Message) -> Self:
        """The command made of the checked parts of ``message``."""
        return cls(*values)


def checked(values: Any, kinds: tuple[Kind, ...], type: MessageType) -> list[Any]:
    """``values`` if they are a list of such kinds."""
    if not isinstance(values, list) or len(values) != len(kinds):
        raise MessageError(f"A {type.name} message has {len(kinds)} parts.")
    for value, kind in zip(values, kinds):
        if not isinstance(value, kind):
            raise MessageError(f"A {type.name} message holds {describe(value)} for {kind}.")
    return values


@dataclass(slots=True)
class _Call(RpcCommandBase):
    """A call of what ``name`` names: the arguments, and the caller's modes."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    mode: Mode
    kinds: ClassVar[tuple[Kind, ...]] = (str, list, dict, list)


class ScriptCall(_Call):
    """Run a built-in operator, such as ``aten::add``."""

    __slots__ = ()
    type = MessageType.SCRIPT_CALL


class PythonCall(_Call):
    """Run a registered Python function, such as ``module:qualname``."""

    __slots__ = ()
    type = MessageType.PYTHON_CALL


@dataclass(slots=True)
class _Value(RpcCommandBase):
    """A value that answers a request."""

    value: Any
    kinds: ClassVar[tuple[Kind, ...]] = (object,)


class ScriptRet(_Value):
    """What a built-in operator returned."""

    __slots__ = ()
    type = MessageType.SCRIPT_RET


class PythonRet(_Value):
    """What a Python function returned."""

    __slots__ = ()
    type = MessageType.PYTHON_RET


class ScriptRRefFetchRet(_Value):
    """The value of an RRef that a built-in operator made."""

    __slots__ = ()
    type = MessageType.SCRIPT_RREF_FETCH_RET


class PythonRRefFetchRet(_Value):
    """The value of an RRef that a Python function made."""

    __slots__ = ()
    type = MessageType.PYTHON_RREF_FETCH_RET


@dataclass(slots=True)
class _RemoteCall(RpcCommandBase):
    """A call whose result stays on the worker, as the value of the RRef ``rref_id``."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    mode: Mode
    rref_id: int
    fork_id: int
    kinds: ClassVar[tuple[Kind, ...]] = (str, list, dict, list, int, int)


class ScriptRemoteCall(_RemoteCall):
    """Run a built-in operator and keep the result."""

    __slots__ = ()
    type = MessageType.SCRIPT_REMOTE_CALL


class PythonRemoteCall(_RemoteCall):
    """Run a registered Python function and keep the result."""

    __slots__ = ()
    type = MessageType.PYTHON_REMOTE_CALL


@dataclass(slots=True)
class _Fork(RpcCommandBase):
    """One user, ``fork_id``, of the RRef ``rref_id``."""

    rref_id: int
    fork_id: int
    kinds: ClassVar[tuple[Kind, ...]] = (int, int)


class RemoteRet(_Fork):
    """The owner holds the result of a remote call, and knows its first user."""

    __slots__ = ()
    type = MessageType.REMOTE_RET


class RRefUserDelete(_Fork):
    """A user is gone."""

    __slots__ = ()
    type = MessageType.RREF_USER_DELETE
    idempotent = True


class RRefForkRequest(_Fork):
    """A new user tells the owner about itself."""

    __slots__ = ()
    type = MessageType.RREF_FORK_REQUEST
    idempotent = True


@dataclass(slots=True)
class _RRefFetchCall(RpcCommandBase):
    """Ask the owner for the value of an RRef."""

    rref_id: int
    kinds: ClassVar[tuple[Kind, ...]] = (int,)


class ScriptRRefFetchCall(_RRefFetchCall):
    """Ask for a value that a built-in operator made."""

    __slots__ = ()
    type = MessageType.SCRIPT_RREF_FETCH_CALL


class PythonRRefFetchCall(_RRefFetchCall):
    """Ask for a value that a Python function made."""

    __slots__ = ()
    type = MessageType.PYTHON_RREF_FETCH_CALL


@dataclass(slots=True)
class RRefChildAccept(RpcCommandBase):
    """A child tells its parent that the owner knows it."""

    fork_id: int
    type = MessageType.RREF_CHILD_ACCEPT
    kinds: ClassVar[tuple[Kind, ...]] = (int,)
    idempotent = True


@dataclass(slots=True)
class RRefAck(RpcCommandBase):
    """Acknowledges an internal message about RRefs."""

    type = MessageType.RREF_ACK
