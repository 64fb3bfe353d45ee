"""What the messages of distributed autograd say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from fxforms.distributed.codec import pack
from fxforms.distributed.commands import COMMANDS, Kind, RpcCommandBase
from fxforms.distributed.message import Message, MessageType
from fxforms.errors import MessageError


@dataclass(slots=True)
class RpcWithAutograd(RpcCommandBase):
    """The message of any other command with its autograd metadata, as a request or a response.

    Attributes:
        wrapped: the message. Its tensors may be replaced before it is read as a command, so that a
            recv function stands between.
        context_id: the autograd context of the call.
        message_id: pairs the send function of one side with the recv function of the other.
        requires_grad: the positions, among the tensors of ``wrapped``, of those that need one.
        released: contexts that the receiver may drop, so that this takes no message of its own.
    """

    wrapped: Message
    context_id: int
    message_id: int
    requires_grad: list[int]
    released: list[int] = field(default_factory=list)
    kinds: ClassVar[tuple[Kind, ...]] = (int, int, int, list, list, bytes)

    def to_message(self) -> Message:
        """This command as a message, whose tensors are those of the wrapped one."""
        inner = self.wrapped
        parts = [self.context_id, self.message_id, self.requires_grad, self.released]
        payload, _ = pack([int(inner.type), *parts, inner.payload])
        return Message(payload, inner.tensors, _WRAPPERS[inner.is_request])

    @classmethod
    def _from_parts(cls, values: list[Any], message: Message) -> Self:
        number, *metadata, payload = values
        inner = Message(payload, message.tensors, MessageType(number), message.id)
        if _WRAPPERS[inner.is_request] is not message.type or inner.type in _WRAPPERS:
            raise MessageError(f"A {message.type.name} message wraps {inner.type.name}.")
        return cls(inner, *metadata)


def wrapped_type(message: Message) -> int:
    """The type of the message that ``message`` wraps, at no cost; of any other, its own.

    It follows the head of the list in the payload.
    """
    if message.type not in _WRAPPERS:
        return message.type
    return int.from_bytes(message.payload[1:2])


_WRAPPERS = (MessageType.FORWARD_AUTOGRAD_RESP, MessageType.FORWARD_AUTOGRAD_REQ)
COMMANDS.update(dict.fromkeys(_WRAPPERS, RpcWithAutograd))


@dataclass(slots=True)
class PropagateGradientsReq(RpcCommandBase):
    """The gradients of the tensors that went through one send function.

    Attributes:
        pass_id: the backward pass.
        message_id: names the send function; `RESUME` names none, and has the worker go on with what
            it holds.
        grads: one for each tensor that needs a gradient, in order; None where there is none.
        retain_graph: keep what the backward pass needs for another one.
    """

    context_id: int
    pass_id: int
    message_id: int
    grads: list[torch.Tensor | None]
    retain_graph: bool
    type = MessageType.BACKWARD_AUTOGRAD_REQ
    kinds: ClassVar[tuple[Kind, ...]] = (int, int, int, list, bool)


RESUME = -1


@dataclass(slots=True)
class PropagateGradientsResp(RpcCommandBase):
    """The gradients went as far as they could.

    Attributes:
        grads: ``[message_id, grads]`` for each send function of the asking worker that is reached.
        waiting: for each worker, the change in whether it holds gradients that wait for others.
    """

    grads: list[list[Any]]
    waiting: dict[int, int]
    type = MessageType.BACKWARD_AUTOGRAD_RESP
    kinds: ClassVar[tuple[Kind, ...]] = (list, dict)


@dataclass(slots=True)
class CleanupAutogradContextReq(RpcCommandBase):
    """Drop an autograd context."""

    context_id: int
    type = MessageType.CLEANUP_AUTOGRAD_CONTEXT_REQ
    kinds: ClassVar[tuple[Kind, ...]] = (int,)
    idempotent = True


@dataclass(slots=True)
class CleanupAutogradContextResp(RpcCommandBase):
    """The context is gone."""

    type = MessageType.CLEANUP_AUTOGRAD_CONTEXT_RESP
