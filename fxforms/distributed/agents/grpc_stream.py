"""The two streams between two workers on gRPC: each worker serves the one that it sends on.

So a message is written by the thread that sends it, and read by the thread that receives it, where
a stream for both ways has two threads of gRPC between.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fxforms.distributed.agents.linked import Cut, Run
from fxforms.errors import MessageError, WorkerLostError

SMALL = 1 << 14  # bytes of a message that is sent at once, or with others in one piece
_FRAME = struct.Struct("<IB")  # bytes of the body, kind

Context = Any  # grpc.ServicerContext; grpcio has no annotations


def frame(kind: int, size: int) -> bytes:
    """What stands before a body of ``size`` bytes."""
    return _FRAME.pack(size, kind)


def frames(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Kind and body of each frame in ``data``.

    Raises:
        MessageError: it does not consist of frames.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        if len(view) - at < _FRAME.size:
            raise MessageError(f"A piece of {len(view)} bytes ends inside a frame.")
        size, kind = _FRAME.unpack_from(view, at)
        at += _FRAME.size
        if size > len(view) - at:
            raise MessageError(f"A piece of {len(view)} bytes ends inside a frame.")
        yield kind, view[at : at + size]
        at += size


class Outgoing:
    """The stream to one peer.

    A message is sent by its own thread where that cannot take long: it is small, and the peer was
    heard after the one before. Otherwise a thread of the pool sends it, in one piece with the small
    ones that gather meanwhile.

    Args:
        send: sends one piece, when the peer has room for it; None ends the stream.
        context: of the call in which the peer opened the stream.
    """

    def __init__(self, send: Callable[[bytes | None], None], context: Context) -> None:
        self._send, self.context = send, context
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._sending = False  # a thread does, or will
        self.ends = self._ended = False  # at the end of what waits
        self.unheard = False  # nothing came since the last message

    def put(self, data: bytes, run: Run | None) -> None:
        """Send frames; ``run`` is given what may take long, None lets this thread do it.

        Raises:
            Cut: the stream has ended.
        """
        with self._lock:
            self._waiting.append(data)
            if self._sending:
                return
            self._sending = True
            at_once = run is None or (len(data) <= SMALL and not self.unheard)
            self.unheard = True
        if not at_once or self._send_next():
            self._send_rest(run)

    def idle(self) -> bool:
        """True if nothing waits to be sent."""
        return not self._sending

    def end(self) -> None:
        """End the stream when all that waits is sent."""
        with self._lock:
            if self._sending or self.ends:
                self.ends = True
                return
            self._sending = self.ends = True
        self._send_all()

    def _send_rest(self, run: Run | None) -> None:
        try:
            if run is not None:
                run(self._send_all)
                return
        except WorkerLostError:
            pass  # no thread is left: this one has to
        self._send_all()

    def _send_all(self) -> None:
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send the next piece; False if none is left, and another thread may send again."""
        with self._lock:
            piece = self._gathered()
        try:
            self._send(piece)
        except Exception as error:  # gRPC takes nothing more: the call has ended
            self.context.cancel()
            raise Cut(str(error)) from None
        with self._lock:
            self._ended |= piece is None
            self._sending = bool(self._waiting) or self.ends > self._ended
            return self._sending

    def _gathered(self) -> bytes | None:
        """The next message, with the small ones behind it; None for the end."""
        pieces: list[bytes] = []
        size = 0
        while self._waiting and (not pieces or size + len(self._waiting[0]) <= SMALL):
            pieces.append(self._waiting.popleft())
            size += len(pieces[-1])
        return b"".join(pieces) if pieces else None


class Stream:
    """Both streams between this worker and a peer. Where one breaks, the other is ended.

    Args:
        incoming: the call that opened the stream of the peer, which iterates over what comes.
        outgoing: the stream that the peer opened here.
    """

    def __init__(self, incoming: Any, outgoing: Outgoing) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        if not outgoing.context.add_callback(self._broken):
            incoming.cancel()

    def _broken(self) -> None:
        if not self.outgoing.ends:
            self.incoming.cancel()

    def cancel(self) -> None:
        """End both at once."""
        self.incoming.cancel()
        self.outgoing.context.cancel()
