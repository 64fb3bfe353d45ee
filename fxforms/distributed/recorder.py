"""Calls inside an autograd context: send and recv functions on the request and on the response."""

from __future__ import annotations

import torch

from fxforms import _substrate as substrate
from fxforms.distributed.agent import Origin, RpcAgent
from fxforms.distributed.autograd_commands import RpcWithAutograd
from fxforms.distributed.callback import answer, handles
from fxforms.distributed.calls import intercept
from fxforms.distributed.context import AutogradContext, contexts_of, current_context, recording
from fxforms.distributed.current import current_agent
from fxforms.distributed.functions import NO_CONTEXT, SendRpcBackward, Source, attach_recv
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.requests import WorkerInfo
from fxforms.distributed.rref_table import table_of
from fxforms.errors import UnsupportedError
from fxforms.functions.inline import any_dual


def _with_send(agent: RpcAgent, context: AutogradContext, message: Message) -> RpcWithAutograd:
    """``message`` with a send function on its tensors that need a gradient."""
    positions = [i for i, x in enumerate(message.tensors) if x.requires_grad]
    message_id = agent.new_id()
    if positions:
        context.send(message_id, [message.tensors[i] for i in positions])
    return RpcWithAutograd(message, context.id, message_id, positions)


def _receive(
    command: RpcWithAutograd, sender: WorkerInfo, earlier: SendRpcBackward | None
) -> Message:
    """The wrapped message, with a recv function on the tensors that have a send function."""
    message = command.wrapped
    source = Source(sender.id, command.message_id, command.context_id, len(command.requires_grad))
    message.tensors = attach_recv(source, earlier, message.tensors, command.requires_grad)
    return message


def _marked(message: Message) -> RpcWithAutograd:
    """``message`` of a call outside of a context, with the tensors that need a gradient named.

    What they become on the other side raises when a backward pass comes there.
    """
    positions = [i for i, x in enumerate(message.tensors) if x.requires_grad]
    return RpcWithAutograd(message, NO_CONTEXT, 0, positions)


def _without_context(message: Message) -> Message:
    """The request of a call outside of a context; an operator captures nothing."""
    marked = _marked(message)
    if not marked.requires_grad and message.type is MessageType.SCRIPT_CALL:
        return message
    return marked.to_message()


def _refuse_levels(message: Message) -> None:
    """Raise UnsupportedError if a transform that is active follows a tensor."""
    tensors = message.tensors
    if any(substrate.level_of(x) >= 0 for x in tensors) or any_dual(tensors):
        raise UnsupportedError(
            "remote() was called inside a transform with a tensor of it, and a value that stays on "
            "a worker has no part in the transform. Call the function by rpc_sync or by "
            "fxforms.distributed.remote_function, which every transform takes."
        )


class _Recorder:
    """The caller's side."""

    def outgoing(self, to: WorkerInfo, message: Message) -> Message:
        """The request with its autograd metadata, if this thread records."""
        if substrate.transforms_active() or substrate.dual_level_open():
            _refuse_levels(message)
        if not torch.is_grad_enabled():
            return message
        context = current_context()
        if context is None:
            return _without_context(message)
        agent = current_agent()
        if not context.call(to.id):
            contexts_of(agent).get(context.id)  # raises; none would tell the other of the end
        command = _with_send(agent, context, message)
        command.released = contexts_of(agent).take_untold(to.id)
        return command.to_message()

    def incoming(self, sender: WorkerInfo, request: Message, message: Message) -> Message:
        """The response without its metadata."""
        if message.type is not MessageType.FORWARD_AUTOGRAD_RESP:
            return message
        command = RpcWithAutograd.from_message(message)
        return _receive(command, sender, _sent_before(command, request))

    def failed(self, to: WorkerInfo, request: Message, error: BaseException) -> None:
        """No gradient will come for what was sent."""
        if request.type is MessageType.FORWARD_AUTOGRAD_REQ:
            command = RpcWithAutograd.from_message(request)
            contexts = contexts_of(current_agent())
            contexts.forget_send(command.context_id, command.message_id)
            if command.released:
                contexts.untold(to.id, command.released)


def _sent_before(command: RpcWithAutograd, request: Message) -> SendRpcBackward | None:
    """The last send function before the response ``command`` to ``request``."""
    if not command.requires_grad:
        return None
    agent, latest = current_agent(), None
    context = contexts_of(agent).find(command.context_id)
    if context is not None:
        latest = context.latest
    elif command.context_id != NO_CONTEXT:  # it has ended, and this is all that is left of it
        sent = [x for x in request.tensors if x.requires_grad]
        latest = SendRpcBackward(command.message_id, sent, None)
    return table_of(agent).joined(latest)


@handles(MessageType.FORWARD_AUTOGRAD_REQ)
def _forward(command: RpcWithAutograd, origin: Origin) -> RpcWithAutograd:
    if command.context_id == NO_CONTEXT:
        message = _receive(command, origin.sender, table_of(origin.agent).joined(None))
        return _marked(answer(message, origin))
    contexts = contexts_of(origin.agent)
    for id in command.released:
        contexts.release(id, origin.sender.id)
    context = contexts.enter(command.context_id)
    message = _receive(command, origin.sender, table_of(origin.agent).joined(context.latest))
    with recording(context):
        return _with_send(origin.agent, context, answer(message, origin))


intercept(_Recorder())
