"""Calls inside an autograd context: send and recv functions on the request and on the response."""

from __future__ import annotations

import torch

from fxforms.distributed.agent import Origin, RpcAgent, WorkerInfo
from fxforms.distributed.autograd_commands import RpcWithAutograd
from fxforms.distributed.callback import handles, run
from fxforms.distributed.calls import intercept
from fxforms.distributed.context import AutogradContext, contexts_of, current_context, recording
from fxforms.distributed.current import current_agent
from fxforms.distributed.functions import SendRpcBackward, Source, attach_recv
from fxforms.distributed.message import Message, MessageType


def _with_send(agent: RpcAgent, context: AutogradContext, message: Message) -> RpcWithAutograd:
    """``message`` with a send function on its tensors that need a gradient."""
    positions = [i for i, x in enumerate(message.tensors) if x.requires_grad]
    message_id = agent.new_id()
    if positions:
        sent = [message.tensors[i] for i in positions]
        context.sends[message_id] = SendRpcBackward(message_id, sent)
    return RpcWithAutograd(message, context.id, message_id, positions)


def _receive(command: RpcWithAutograd, sender: WorkerInfo) -> Message:
    """The wrapped message, with a recv function on the tensors that have a send function."""
    message = command.wrapped
    source = Source(sender.id, command.message_id, command.context_id, len(command.requires_grad))
    message.tensors = attach_recv(source, message.tensors, command.requires_grad)
    return message


class _Recorder:
    """The caller's side."""

    def outgoing(self, to: WorkerInfo, message: Message) -> Message:
        """The request with its autograd metadata, if this thread records."""
        context = current_context()
        if context is None or not torch.is_grad_enabled():
            return message
        context.known.add(to.id)
        return _with_send(current_agent(), context, message).to_message()

    def incoming(self, sender: WorkerInfo, message: Message) -> Message:
        """The response without its metadata."""
        if message.type is not MessageType.FORWARD_AUTOGRAD_RESP:
            return message
        return _receive(RpcWithAutograd.from_message(message), sender)

    def failed(self, to: WorkerInfo, request: Message, error: BaseException) -> None:
        """No gradient will come for what was sent."""
        if request.type is MessageType.FORWARD_AUTOGRAD_REQ:
            command = RpcWithAutograd.from_message(request)
            contexts_of(current_agent()).forget_send(command.context_id, command.message_id)


@handles(MessageType.FORWARD_AUTOGRAD_REQ)
def _forward(command: RpcWithAutograd, origin: Origin) -> RpcWithAutograd:
    context = contexts_of(origin.agent).enter(command.context_id)
    with recording(context):
        answer = run(_receive(command, origin.sender), origin)
        return _with_send(origin.agent, context, answer.to_message())


intercept(_Recorder())
