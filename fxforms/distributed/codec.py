"""Plain data to bytes and back, tensors apart.

The bytes are MessagePack, which holds data and never code. What MessagePack has no type for is an
extension, listed below. A tensor is a number in the bytes and itself in a list beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import torch

from fxforms.distributed.registry import registered_class, registered_name
from fxforms.errors import MessageError, describe

try:
    import msgpack
except ImportError as error:
    raise ImportError("fxforms.distributed needs msgpack: pip install 'fxforms[rpc]'.") from error

MAX_DEPTH = 32  # of extensions inside extensions; MessagePack bounds its own containers
MAX_PAYLOAD = 1 << 26

_TENSOR, _TUPLE, _COMPLEX, _CONSTANT, _DEVICE, _SIZE, _SLICE, _INT, _VALUE = range(1, 10)
RREF, SLOT = 10, 11

_CONSTANTS = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}

Encoder = Callable[[Any], list[Any]]
Decoder = Callable[[list[Any]], Any]


def pack(value: Any) -> tuple[bytes, tuple[torch.Tensor, ...]]:
    """``value`` as bytes, and the tensors in it.

    Raises:
        MessageError: ``value`` holds something that is no plain data.
    """
    packing = _Packing()
    try:
        payload: bytes = packing.pack(value)
    except (ValueError, OverflowError, RecursionError, UnicodeError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(
            f"The value cannot be sent ({error}). Send flatter, plain data."
        ) from None
    if len(payload) > MAX_PAYLOAD:
        raise MessageError(
            f"The value takes {len(payload)} bytes, at most {MAX_PAYLOAD} are sent. "
            "Put large data into tensors."
        )
    return payload, tuple(packing.tensors)


def unpack(payload: bytes, tensors: tuple[torch.Tensor, ...]) -> Any:
    """The value that `pack` gave bytes and tensors for.

    Raises:
        MessageError: the bytes are not such a value.
    """
    unpacking = _Unpacking(tensors)
    try:
        return unpacking.unpack(payload)
    except MessageError as error:
        failure = error
    except Exception as error:  # whatever hostile bytes provoke
        text = f"{type(error).__name__} {error}"
        failure = MessageError(f"The payload is no value: {text[:200]}.")
    unpacking.read_rrefs(payload)
    raise failure.with_traceback(None)  # a frame of it may hold an RRef


class _Packing:
    """One value on its way to bytes."""

    __slots__ = ("depth", "numbers", "tensors")

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}
        self.depth = 0

    def pack(self, value: Any) -> bytes:
        data: bytes = msgpack.packb(value, default=self.extend, strict_types=True)
        return data

    def extend(self, value: Any) -> msgpack.ExtType:
        """``value``, which MessagePack does not know, as an extension."""
        if isinstance(value, torch.Tensor):
            number = self.numbers.setdefault(id(value), len(self.tensors))
            if number == len(self.tensors):
                self.tensors.append(value)
            return msgpack.ExtType(_TENSOR, number.to_bytes(4, "little"))
        if type(value) is int:
            return msgpack.ExtType(_INT, str(value).encode())
        code, parts = _parts(value)
        if self.depth == MAX_DEPTH:
            raise MessageError(f"A value nested deeper than {MAX_DEPTH} cannot be sent.")
        self.depth += 1
        try:
            return msgpack.ExtType(code, self.pack(parts))
        finally:
            self.depth -= 1


def _parts(value: Any) -> tuple[int, list[Any]]:
    """The extension for ``value`` and the plain values it is made of."""
    known = _EXTENSIONS.get(type(value))
    if known is not None:
        return known[0], known[1](value)
    name = registered_name(type(value))
    if name is not None and isinstance(value, tuple) and hasattr(value, "_fields"):
        return _VALUE, [name, *value]
    if name is not None and is_dataclass(value):
        return _VALUE, [name, *(getattr(value, field.name) for field in fields(value))]
    return _refuse(value)


def _refuse(value: Any) -> NoReturn:
    kind = type(value)
    if isinstance(value, tuple) or is_dataclass(value):
        cure = f"Register the class on both workers: fxforms.distributed.register({kind.__name__})."
    else:
        cure = "Send tensors, numbers, strings, bytes, None, and lists, tuples and dicts of them."
    raise MessageError(f"{describe(value)} cannot be sent to another worker. {cure}")


class _Unpacking:
    """Bytes on their way to a value."""

    __slots__ = ("depth", "rrefs", "tensors")

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors
        self.depth = 0
        self.rrefs: set[bytes] = set()  # those that were read, each of which has its own id

    def unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=self.extension, strict_map_key=False)

    def read_rrefs(self, data: bytes) -> None:
        """Read the RRefs alone that are still unread, so that their owners see them released."""
        with suppress(Exception):
            msgpack.unpackb(data, ext_hook=self._rrefs_in, strict_map_key=False)

    def _rrefs_in(self, code: int, data: bytes) -> None:
        if code == RREF and data not in self.rrefs:
            with suppress(Exception):
                self.extension(code, data)
        elif code in _DECODERS and code != RREF and self.depth < MAX_DEPTH:
            self.depth += 1
            self.read_rrefs(data)
            self.depth -= 1

    def extension(self, code: int, data: bytes) -> Any:
        """The value that an extension stands for."""
        if code == _TENSOR:
            return self.tensors[int.from_bytes(data, "little")]
        if code == _INT:
            return int(data) if len(data) <= 4000 else _malformed("an integer of such length")
        decode = _DECODERS.get(code)
        if decode is None or self.depth == MAX_DEPTH:
            _malformed(f"extension {code} at depth {self.depth}")
        if code == RREF:
            self.rrefs.add(data)
        self.depth += 1
        try:
            return decode(self.unpack(data))
        finally:
            self.depth -= 1


def _malformed(what: str) -> NoReturn:
    raise MessageError(f"The payload is no value: it holds {what}.")


def _value(parts: list[Any]) -> Any:
    """A value of a registered named tuple or dataclass."""
    cls = registered_class(parts[0])
    if cls is None or not (is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_make"))):
        _malformed(f"a value of {parts[0]!r}, which is not registered on this worker")
    return cls(*parts[1:])


_EXTENSIONS: dict[type, tuple[int, Encoder]] = {
    tuple: (_TUPLE, list),
    complex: (_COMPLEX, lambda z: [z.real, z.imag]),
    torch.dtype: (_CONSTANT, lambda value: [str(value)]),
    torch.layout: (_CONSTANT, lambda value: [str(value)]),
    torch.memory_format: (_CONSTANT, lambda value: [str(value)]),
    torch.device: (_DEVICE, lambda device: [str(device)]),
    torch.Size: (_SIZE, list),
    slice: (_SLICE, lambda s: [s.start, s.stop, s.step]),
}
_DECODERS: dict[int, Decoder] = {
    _TUPLE: tuple,
    _COMPLEX: lambda parts: complex(*parts),
    _CONSTANT: lambda parts: _CONSTANTS[parts[0]],
    _DEVICE: lambda parts: torch.device(parts[0]),
    _SIZE: torch.Size,
    _SLICE: lambda parts: slice(*parts),
    _VALUE: _value,
}


def extend(code: int, cls: type, encode: Encoder, decode: Decoder) -> None:
    """Let values of ``cls`` travel as extension ``code``: plain parts by ``encode``, and back."""
    _EXTENSIONS[cls] = (code, encode)
    _DECODERS[code] = decode
