"""Large messages between processes of one machine: written once into memory that both map.

The sender makes a segment without a name, which the receiver opens through ``/proc``, so nothing is
left behind when both end. The tensors that arrive lie in the segment. Its first byte is 1 as long
as one of them lives; then the sender uses it again.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch

from fxforms.distributed.frame import layout, raw, read_head, restore
from fxforms.distributed.message import Message
from fxforms.errors import MessageError

MAX_SEGMENTS = 64  # of one sender for one receiver; each takes a file descriptor
MAX_FREE = 1 << 28  # bytes of segments that are kept although nothing is in them
_REFERENCE = struct.Struct("<IQQ")  # file descriptor, number, bytes
_START = 4096  # where the data begins
_FREE, _USED = 0, 1


@dataclass(slots=True)
class Segment:
    """One piece of shared memory, as its maker holds it."""

    fd: int
    number: int
    memory: mmap.mmap
    data: torch.Tensor

    @property
    def free(self) -> bool:
        """True if nothing of it is used on the other side."""
        return self.memory[0] == _FREE


class Outbox:
    """The segments that this process writes for one other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._made = 0

    def take(self, size: int) -> Segment | None:
        """A segment with room for ``size`` bytes, marked as used; None if there are too many."""
        capacity = 1 << max(16, (size - 1).bit_length())
        with self._lock:
            for segment in self._segments:
                if segment.free and capacity <= segment.data.numel() <= 2 * capacity:
                    segment.memory[0] = _USED
                    return segment
            self._trim()
            if len(self._segments) >= MAX_SEGMENTS:
                return None
            self._made += 1
            segment = _make(self._made, capacity)
            self._segments.append(segment)
            return segment

    def free(self, number: int) -> None:
        """Mark a segment as free that the other side has not seen."""
        with self._lock:
            for segment in self._segments:
                if segment.number == number:
                    segment.memory[0] = _FREE

    def _trim(self) -> None:
        """Drop free segments, oldest first, until few bytes are kept for nothing."""
        free = [segment for segment in self._segments if segment.free]
        kept = sum(segment.data.numel() for segment in free)
        for segment in free:
            if kept > MAX_FREE or len(self._segments) >= MAX_SEGMENTS:
                kept -= segment.data.numel()
                self._segments.remove(segment)
                os.close(segment.fd)

    def close(self) -> None:
        """Drop all segments; the other side keeps what it has mapped."""
        with self._lock:
            for segment in self._segments:
                os.close(segment.fd)
            self._segments.clear()


def _make(number: int, capacity: int) -> Segment:
    fd = os.memfd_create("fxforms", os.MFD_CLOEXEC)
    os.ftruncate(fd, _START + capacity)
    memory = mmap.mmap(fd, _START + capacity)
    memory[0] = _USED
    data = torch.frombuffer(memory, dtype=torch.uint8, offset=_START)
    return Segment(fd, number, memory, data)


class Inbox:
    """The segments of one other process, as they are mapped here.

    Args:
        pid: the number of that process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._mapped: dict[int, mmap.mmap] = {}

    def open(self, fd: int, number: int, size: int) -> torch.Tensor:
        """The first ``size`` bytes of a segment; it is free again when no view of them lives.

        Raises:
            MessageError: there is no such segment.
        """
        with self._lock:
            memory = self._mapped.pop(number, None)
            if memory is None:
                memory = _map(self._pid, fd)
                while len(self._mapped) >= MAX_SEGMENTS:
                    del self._mapped[next(iter(self._mapped))]
            self._mapped[number] = memory  # the last of the dict is the latest in use
        if _START + size > len(memory):
            raise MessageError(f"A segment of {len(memory)} bytes has no {size} in it.")
        array = np.frombuffer(memory, np.uint8, size, _START)
        weakref.finalize(array, memory.__setitem__, 0, _FREE).atexit = False
        return torch.from_numpy(array)


def _map(pid: int, fd: int) -> mmap.mmap:
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MessageError(f"The memory of process {pid} cannot be opened: {error}.") from None
    try:
        return mmap.mmap(own, 0)
    finally:
        os.close(own)


class SharedFrames:
    """Messages in segments: a reference to one is bytes.

    Args:
        pid: the number of the other process.
        limit: bytes that a message may have.
    """

    def __init__(self, pid: int, limit: int) -> None:
        self._outbox, self._inbox, self._limit = Outbox(), Inbox(pid), limit

    def write(self, head: bytes, tensors: list[torch.Tensor]) -> bytes | None:
        """Put what `write_head` gave into a segment; None if there are too many."""
        places, end = layout(len(head), [tensor.nbytes for tensor in tensors])
        segment = self._outbox.take(end)
        if segment is None:
            return None
        segment.data[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        for place, tensor in zip(places, tensors):
            segment.data[place : place + tensor.nbytes] = raw(tensor)
        return _REFERENCE.pack(segment.fd, segment.number, end)

    def read(self, reference: memoryview) -> Message:
        """The message in a segment; its tensors lie there.

        Raises:
            MessageError: there is none.
        """
        if len(reference) != _REFERENCE.size:
            raise MessageError(f"A reference to memory has {len(reference)} bytes.")
        fd, number, size = _REFERENCE.unpack(reference)
        data = self._inbox.open(fd, number, size)
        head = read_head(data.numpy().data, self._limit)
        places, end = layout(head.end, [spec.nbytes for spec in head.specs])
        if end > size:
            raise MessageError(f"A segment of {size} bytes ends inside its tensors.")
        head.message.tensors = tuple(
            restore(spec, data[place : place + spec.nbytes])
            for place, spec in zip(places, head.specs)
        )
        return head.message

    def drop(self, reference: bytes) -> None:
        """Take back what `write` gave, as it was not sent."""
        self._outbox.free(_REFERENCE.unpack(reference)[1])

    def close(self) -> None:
        """Drop the segments; the other side keeps what it has mapped."""
        self._outbox.close()


class Probe:
    """What tells another process whether it shares memory with this one."""

    def __init__(self) -> None:
        self._token = secrets.token_bytes(16)
        self._segment: Segment | None = None
        if hasattr(os, "memfd_create"):
            self._segment = _make(0, _START)
            self._segment.memory[1 : 1 + len(self._token)] = self._token

    def told(self) -> tuple[int, int, str]:
        """What the other process needs: plain data."""
        fd = self._segment.fd if self._segment else -1
        return os.getpid(), fd, self._token.hex()

    def close(self) -> None:
        """Drop the probe, once all have looked."""
        if self._segment:
            os.close(self._segment.fd)


def shared(told: tuple[int, int, str]) -> bool:
    """True if the process that told so is on this machine and lets its memory be mapped."""
    pid, fd, token = told
    try:
        return fd >= 0 and _map(pid, fd)[1 : 1 + len(token) // 2] == bytes.fromhex(token)
    except (MessageError, OSError, ValueError):
        return False
