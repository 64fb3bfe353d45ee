"""Which requests are mostly answered in less time than it takes to wake a thread."""

from __future__ import annotations

import msgpack

from fxforms.distributed.autograd_commands import wrapped_type
from fxforms.distributed.message import Message, MessageType

_TYPES = frozenset(
    {
        MessageType.SCRIPT_CALL,
        MessageType.BACKWARD_AUTOGRAD_REQ,
        MessageType.CLEANUP_AUTOGRAD_CONTEXT_REQ,
    }
)
# A PythonCall, a list of four, of an operator under transforms.
_OPERATOR = b"\x94" + msgpack.packb("fxforms.distributed.transformed:evaluate_operator")


def is_short(message: Message) -> bool:
    """True if the thread that received ``message`` should answer it before it receives the next.

    Such a request runs operators of torch or a small backward pass, and no function of a user
    unless by a hook or a rule in the graph.
    """
    if message.type is MessageType.PYTHON_CALL:
        return message.payload.startswith(_OPERATOR)
    return wrapped_type(message) in _TYPES
