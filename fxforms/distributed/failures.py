"""The error of a request: as a message, and as an exception again on the caller's side."""

from __future__ import annotations

import builtins
import traceback
from functools import lru_cache

from fxforms import errors
from fxforms.distributed.codec import pack, unpack
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.registry import registered_class, registered_name
from fxforms.errors import MessageError, RemoteError, RpcError

_MAX_TEXT = 1 << 16


def exception_response(error: BaseException, id: int) -> Message:
    """``error`` as the answer to request ``id``."""
    if isinstance(error, RemoteError):  # of a third worker: its type and text go on
        kind, text = error.remote_type, error.remote_text
    else:
        kind, text = type_name(type(error)), _text_of(error)
    trace = "".join(traceback.format_exception(error))
    payload, _ = pack([kind, _clean(text), _clean(trace)])
    return Message(payload, (), MessageType.EXCEPTION, id)


def _text_of(error: BaseException) -> str:
    """``str(error)``, of an error that may not have one."""
    try:
        return str(error)
    except Exception as fault:
        return f"(its text raised {type(fault).__name__})"


def _clean(text: str) -> str:
    """``text`` cut in the middle to a size that travels, without lone surrogates."""
    half = _MAX_TEXT // 2
    short = text if len(text) <= _MAX_TEXT else f"{text[:half]}\n...\n{text[-half:]}"
    return short.encode(errors="replace").decode()


def type_name(kind: type) -> str:
    """The name under which the type of an error travels."""
    return registered_name(kind) or f"{kind.__module__}:{kind.__qualname__}"


def error_of(message: Message, worker: str) -> RpcError:
    """The error that worker ``worker`` answered with."""
    parts = unpack(message.payload, ())
    if not isinstance(parts, list) or [*map(type, parts)] != [str, str, str]:
        return MessageError(f"Worker {worker!r} answered with an error that cannot be read.")
    kind, text, trace = parts
    error = _error_class(kind)(f"{text}\n(raised as {kind} on worker {worker!r})")
    error.worker, error.remote_type, error.remote_text, error.remote_traceback = worker, *parts
    error.add_note(f"Traceback on worker {worker!r}:\n{trace}")
    return error


@lru_cache(maxsize=256)
def _error_class(name: str) -> type[RemoteError]:
    """`RemoteError`, as a subclass of the built-in or registered exception called ``name`` too."""
    kind = _known_type(name)
    if kind is None:
        return RemoteError
    try:
        members = {"__init__": _init, "__str__": _first, "__module__": __name__}
        cls: type[RemoteError] = type(f"Remote{kind.__name__}", (RemoteError, kind), members)
        error = cls("tried")
        error.worker = error.remote_type = error.remote_text = error.remote_traceback = ""
    except Exception:  # an exception that is made of more than a text, or will not be derived from
        return RemoteError
    return cls


def _known_type(name: str) -> type[Exception] | None:
    """The exception type called ``name``, if a peer may name it."""
    module, _, qualname = name.partition(":")
    spaces = {"builtins": builtins, "fxforms.errors": errors}
    found = getattr(spaces[module], qualname, None) if module in spaces else registered_class(name)
    if isinstance(found, type) and issubclass(found, Exception):
        return None if issubclass(RemoteError, found) else found
    return None


def _init(self: RemoteError, text: str) -> None:
    Exception.__init__(self, text)


def _first(self: RemoteError) -> str:
    return str(self.args[0])
