"""A message as bytes: a head with the payload and the shape of each tensor, then the tensors raw.

Every size is checked before anything of that size is made.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fxforms.distributed.codec import MAX_PAYLOAD
from fxforms.distributed.message import Message, MessageType
from fxforms.errors import MessageError, describe

MAX_TENSORS = 65_535
MAX_NDIM = 64
_ALIGN = 64

_MAGIC = b"FX1"
_HEAD = struct.Struct("<3sBQIH")  # magic, type, id, size of the payload, number of tensors
_TYPES = {int(type): type for type in MessageType if type is not MessageType.UNKNOWN}
# The numbers of the dtypes are fixed, as those of the messages are.
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
_NUMPY = frozenset({torch.float32, torch.float64, torch.int64, torch.complex64, torch.complex128})


@dataclass(slots=True)
class TensorSpec:
    """What a head says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


@dataclass(slots=True)
class Head:
    """A head that was read: the message without its tensors, and what they will be."""

    message: Message
    specs: list[TensorSpec]
    end: int  # where the head ends


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as it is sent: dense, contiguous, on the CPU, without a graph.

    Raises:
        MessageError: it is not of that kind, and making it so is not for us to decide.
    """
    dense = tensor.is_cpu and tensor.layout is torch.strided
    if not dense or tensor.dtype not in _NUMBERS or tensor.is_nested:
        raise MessageError(
            f"{describe(tensor)}, {tensor.layout} on {tensor.device}, cannot be sent. Send a dense "
            "tensor on the CPU: x.cpu(), x.to_dense(), x.dequantize()."
        )
    if tensor.requires_grad or type(tensor) is not torch.Tensor:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor._is_zerotensor():  # a tangent of which torch knows that it is zero, without data
        tensor = tensor.clone()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """``gradient`` as it can be sent; that of an embedding may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def isolated(message: Message) -> Message:
    """``message`` as it arrives over a wire: no tensor shares memory or a graph with the sender."""
    tensors = tuple(plain(tensor).clone() for tensor in message.tensors)
    return Message(message.payload, tensors, message.type, message.id)


def write_head(message: Message) -> tuple[bytes, list[torch.Tensor]]:
    """The head of ``message``, and its tensors in the form in which they are sent."""
    tensors = [plain(tensor) for tensor in message.tensors]
    if len(tensors) > MAX_TENSORS:
        raise MessageError(f"{len(tensors)} tensors in a message, at most {MAX_TENSORS} are sent.")
    payload = message.payload
    parts = [_HEAD.pack(_MAGIC, message.type, message.id, len(payload), len(tensors))]
    for tensor in tensors:
        shape = tensor.shape
        n = len(shape)
        parts.append(struct.pack(f"<BB{n}q", _NUMBERS[tensor.dtype], n, *shape))
    parts.append(payload)
    return b"".join(parts), tensors


def read_head(data: memoryview, limit: int) -> Head:
    """The head at the start of ``data``.

    Raises:
        MessageError: there is none, or its sizes exceed ``limit`` bytes.
    """
    try:
        magic, number, id, size, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or number not in _TYPES:
            raise MessageError(f"A frame starts with {bytes(data[:4])!r}.")
        at = _HEAD.size
        specs = []
        for _ in range(count):
            spec, at = _read_spec(data, at)
            specs.append(spec)
    except struct.error:
        raise MessageError(f"A frame of {len(data)} bytes ends inside its head.") from None
    total = sum(spec.nbytes for spec in specs)
    if size > MAX_PAYLOAD or total + size > limit:
        raise MessageError(f"A frame of {total + size} bytes is larger than {limit}.")
    if at + size > len(data):
        raise MessageError(f"A frame of {len(data)} bytes ends inside its payload.")
    message = Message(bytes(data[at : at + size]), (), _TYPES[number], id)
    return Head(message, specs, at + size)


def _read_spec(data: memoryview, at: int) -> tuple[TensorSpec, int]:
    """The spec at ``at``, and where it ends."""
    number, ndim = struct.unpack_from("<BB", data, at)
    if number >= len(_DTYPES) or ndim > MAX_NDIM:
        raise MessageError(f"A tensor of dtype {number} with {ndim} dims is not known.")
    shape = struct.unpack_from(f"<{ndim}q", data, at + 2)
    if any(size < 0 for size in shape):
        raise MessageError(f"A tensor of shape {shape} is not possible.")
    dtype = _DTYPES[number]
    return TensorSpec(dtype, shape, math.prod(shape) * dtype.itemsize), at + 2 + 8 * ndim


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in `plain` form, as a view."""
    return tensor.reshape(-1).view(torch.uint8)


def joined(head: bytes, tensors: list[torch.Tensor]) -> bytes:
    """What `write_head` gave, as one piece of bytes."""
    parts = [head]
    for tensor in tensors:
        array: np.ndarray[Any, Any] = (tensor if tensor.dtype in _NUMPY else raw(tensor)).numpy()
        parts.append(array.tobytes())
    return b"".join(parts)


def layout(start: int, sizes: list[int]) -> tuple[list[int], int]:
    """Where tensors of ``sizes`` bytes lie in memory after a head, aligned, and where they end."""
    places = []
    for size in sizes:
        start = -(-start // _ALIGN) * _ALIGN
        places.append(start)
        start += size
    return places, start


def restore(spec: TensorSpec, data: torch.Tensor) -> torch.Tensor:
    """The tensor of ``spec`` on its bytes.

    Its storage begins with it: `torch.set_rng_state` reads from there, whatever the offset.
    """
    if data.storage_offset():
        data = torch.from_numpy(data.numpy()) if spec.nbytes else data.new_empty(0)
    if spec.dtype is torch.bool:
        data = data != 0  # any other byte is no value of a bool
    try:
        return data.view(spec.dtype).view(spec.shape)
    except RuntimeError as error:  # a shape with a zero, whose other sizes overflow
        raise MessageError(f"A tensor of shape {spec.shape} is not possible: {error}.") from None


def read_tensors(data: memoryview, at: int, specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """The tensors whose bytes follow each other from ``at`` to the end of ``data``, copied."""
    if at + sum(spec.nbytes for spec in specs) != len(data):
        raise MessageError(f"A frame of {len(data)} bytes has another size than its head says.")
    tensors = []
    for spec in specs:
        tensors.append(_copied(spec, data[at : at + spec.nbytes]))
        at += spec.nbytes
    return tuple(tensors)


def _copied(spec: TensorSpec, data: memoryview) -> torch.Tensor:
    """The tensor of ``spec`` on a copy of its bytes."""
    if not data:
        return restore(spec, torch.empty(0, dtype=torch.uint8))
    if spec.dtype is torch.bool:
        return restore(spec, torch.frombuffer(bytearray(data), dtype=torch.uint8))
    tensor = torch.frombuffer(bytearray(data), dtype=spec.dtype)
    return tensor if len(spec.shape) == 1 else tensor.view(spec.shape)


def encode(message: Message) -> bytes:
    """``message`` as one piece of bytes."""
    return joined(*write_head(message))


def decode(data: bytes | memoryview, limit: int) -> Message:
    """The message that `encode` made bytes of.

    Raises:
        MessageError: it is none, or larger than ``limit`` bytes.
    """
    view = memoryview(data)
    head = read_head(view, limit)
    head.message.tensors = read_tensors(view, head.end, head.specs)
    return head.message
