"""The message: what one worker sends another, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch


class MessageType(IntEnum):
    """What a message is. The numbers are fixed: peers of any version agree on them."""

    SCRIPT_CALL = 0
    SCRIPT_RET = 1
    PYTHON_CALL = 2
    PYTHON_RET = 3
    SCRIPT_REMOTE_CALL = 4
    PYTHON_REMOTE_CALL = 5
    REMOTE_RET = 6
    SCRIPT_RREF_FETCH_CALL = 7
    PYTHON_RREF_FETCH_CALL = 8
    SCRIPT_RREF_FETCH_RET = 9
    PYTHON_RREF_FETCH_RET = 10
    RREF_USER_DELETE = 11
    RREF_FORK_REQUEST = 12
    RREF_CHILD_ACCEPT = 13
    RREF_ACK = 14
    FORWARD_AUTOGRAD_REQ = 15
    FORWARD_AUTOGRAD_RESP = 16
    BACKWARD_AUTOGRAD_REQ = 17
    BACKWARD_AUTOGRAD_RESP = 18
    CLEANUP_AUTOGRAD_CONTEXT_REQ = 19
    CLEANUP_AUTOGRAD_CONTEXT_RESP = 20
    EXCEPTION = 55
    UNKNOWN = 60


_T = MessageType
_RESPONSES = frozenset(
    {
        _T.SCRIPT_RET,
        _T.PYTHON_RET,
        _T.REMOTE_RET,
        _T.SCRIPT_RREF_FETCH_RET,
        _T.PYTHON_RREF_FETCH_RET,
        _T.RREF_ACK,
        _T.FORWARD_AUTOGRAD_RESP,
        _T.BACKWARD_AUTOGRAD_RESP,
        _T.CLEANUP_AUTOGRAD_CONTEXT_RESP,
        _T.EXCEPTION,
    }
)
_REQUESTS = frozenset(MessageType) - _RESPONSES - {_T.UNKNOWN}


@dataclass(slots=True)
class Message:
    """A payload, its tensors beside it, its type, and the id that pairs a response to its request.

    Example:
        >>> from fxforms.distributed.message import Message, MessageType
        >>> Message(b"", (), MessageType.RREF_ACK, 7).is_response
        True
    """

    payload: bytes
    tensors: tuple[torch.Tensor, ...]
    type: MessageType
    id: int = 0

    @property
    def is_request(self) -> bool:
        """True if the receiver answers this message."""
        return self.type in _REQUESTS

    @property
    def is_response(self) -> bool:
        """True if this message answers another."""
        return self.type in _RESPONSES
