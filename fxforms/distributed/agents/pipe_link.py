"""Small messages between processes of one machine: a pipe each way, beside the link of the agent.

A pipe costs one system call to send and one to receive, where gloo and gRPC have threads of their
own, gloo asks the peer for room, and gRPC encrypts. The link beside stays: it takes what the pipe
has no room for, and notices when the peer dies or is silent.
"""

from __future__ import annotations

import os
import select
import stat
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Protocol

from fxforms.distributed.agents.linked import Cut, Run
from fxforms.distributed.agents.shared_memory import SharedFrames
from fxforms.distributed.frame import decode, joined, write_head
from fxforms.distributed.message import Message
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import MessageError

_FRAME = struct.Struct("<HB")  # bytes of the body, kind
_WHOLE, _REFERENCE, _CUT = range(3)
_ROOM = select.PIPE_BUF - _FRAME.size  # up to this the kernel writes a frame in one piece
_READ = 1 << 16


class Beside(Protocol):
    """The link that pipes stand beside."""

    peer: WorkerInfo
    limit: int

    def send(self, message: Message, run: Run | None) -> None:
        """As `Link.send`."""


class PipeLink:
    """One worker's end of two pipes.

    Args:
        beside: the other link to the same peer.
        shared: the memory shared with it.
        pid: the process number of the peer.
        own: the pipe, made here, that the peer writes to: the end to read and the end to write.
        other: the file descriptor, in the peer, of the pipe that this worker writes to.
    """

    def __init__(
        self, beside: Beside, shared: SharedFrames, pid: int, own: tuple[int, int], other: int
    ) -> None:
        self.peer = beside.peer
        self._beside, self._limit = beside, beside.limit
        self._shared = shared
        self._incoming, self._own = own
        os.set_blocking(self._own, False)
        self._outgoing = _open(pid, other)
        self._lock = threading.Lock()
        self._is_cut = False
        self._rest = b""
        self._frames: deque[tuple[int, bytes]] = deque()

    def send(self, message: Message, run: Run | None) -> None:
        """Send ``message``, by the pipe if it has room."""
        head, tensors = write_head(message)
        size = len(head) + sum(tensor.nbytes for tensor in tensors)
        if size > self._limit:
            raise MessageError(f"A message of {size} bytes, at most {self._limit} are sent.")
        if size <= _ROOM:
            sent = self._write(_WHOLE, joined(head, tensors))
        else:
            reference = self._shared.write(head, tensors)
            sent = reference is not None and self._write(_REFERENCE, reference)
            if reference is not None and not sent:
                self._shared.drop(reference)
        if not sent:
            self._beside.send(message, run)

    def _write(self, kind: int, body: bytes) -> bool:
        """Write a frame; False if the pipe is full."""
        with self._lock:
            if self._is_cut:
                raise Cut("this worker ended the connection.")
            if self._outgoing < 0:
                return False
            try:
                os.write(self._outgoing, _FRAME.pack(len(body), kind) + body)
            except BlockingIOError:
                return False
            except BrokenPipeError:
                raise Cut("its pipe closed; the process may have died.") from None
        return True

    def receive(self) -> Message | None:
        """The next message."""
        while not self._frames:
            self._read()
        kind, body = self._frames.popleft()
        if self._is_cut:
            self._close()
            raise Cut("this worker ended the connection.")
        if kind == _REFERENCE:
            return self._shared.read(memoryview(body))
        if kind != _WHOLE:
            raise MessageError(f"A frame of kind {kind} is not known.")
        return decode(body, self._limit)

    def _read(self) -> None:
        """Take what is in the pipe, or wait for it."""
        data = self._rest + os.read(self._incoming, _READ)
        at = 0
        while at + _FRAME.size <= len(data):
            size, kind = _FRAME.unpack_from(data, at)
            end = at + _FRAME.size + size
            if end > len(data):
                break
            self._frames.append((kind, data[at + _FRAME.size : end]))
            at = end
        self._rest = data[at:]

    def bye(self) -> None:
        """The link beside says it."""

    def cut(self) -> None:
        """End the connection of this worker; whoever receives finds a frame that says so."""
        with self._lock:
            if self._is_cut:
                return
            self._is_cut = True
            with suppress(BlockingIOError):  # full: the receiver wakes anyway
                os.write(self._own, _FRAME.pack(0, _CUT))

    def _close(self) -> None:
        """Close the pipes, when nobody reads any more."""
        with self._lock:
            for fd in (self._incoming, self._own, self._outgoing):
                if fd >= 0:
                    os.close(fd)


def _open(pid: int, fd: int) -> int:
    """The pipe that process ``pid`` knows as ``fd``, to write to; -1 if it cannot be had."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):  # nothing else is ever written to
            return -1
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
