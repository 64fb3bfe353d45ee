"""One worker's connection to another: frames over a gloo group of two."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from fxforms.distributed.agents.gloo_pair import Pair
from fxforms.distributed.agents.linked import Cut, Run
from fxforms.distributed.agents.shared_memory import SharedFrames
from fxforms.distributed.frame import (
    TensorSpec,
    joined,
    layout,
    raw,
    read_head,
    read_tensors,
    restore,
    write_head,
)
from fxforms.distributed.message import Message
from fxforms.distributed.options import Options
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import MessageError

BUFFER = 1 << 13  # bytes of a small frame; what is larger is sent on its own
WINDOW = 64  # receives that are posted at once
REPOST = WINDOW // 4  # receives that are posted anew at once
DIRECT = 1 << 16  # bytes that the network is trusted to take from a sender without a wait
TOGETHER = 1 << 16  # bytes from which a tensor of a large message is sent on its own
PIECE = 1 << 26  # bytes of one send of a large tensor

_FRAMES, _PIECES = 1, 2  # tags
_PRELUDE = struct.Struct("<BQII")  # kind, receives posted anew, bytes of this, of a large head
ROOM = BUFFER - _PRELUDE.size  # bytes of a frame's body
_SMALL, _SHARED, _LARGE, _BEAT, _BYE = range(5)


@dataclass(slots=True)
class _Frame:
    """What is written at once: a body, and what follows it on its own."""

    kind: int
    body: bytes
    large: int = 0
    pieces: Sequence[torch.Tensor] = ()


class GlooLink:
    """One worker's end of the connection to another.

    Args:
        store: where both ends find each other.
        gloo: the device of this worker.
        me, peer: the two workers.
        memory: the process number of the peer if it shares memory with this process, else 0.
        options: how long the peer may be silent, and how large a message may be.
    """

    def __init__(
        self,
        store: Any,
        gloo: Any,
        me: WorkerInfo,
        peer: WorkerInfo,
        options: Options,
        memory: int,
    ) -> None:
        self.peer = peer
        self.limit = options.max_message_bytes
        self._silence = timedelta(seconds=options.silence)
        name = f"link/{min(me.id, peer.id)}/{max(me.id, peer.id)}"
        self._group = Pair(store, name, int(me.id > peer.id), gloo, options.init_timeout)
        self._buffers = [torch.empty(BUFFER, dtype=torch.uint8) for _ in range(WINDOW)]
        self._views = [buffer.numpy().data for buffer in self._buffers]
        self._posted = [self._group.post(buffer, _FRAMES) for buffer in self._buffers]
        self._lock = threading.Lock()
        self._sent = self._taken = self._received = self._ready = self._stale = 0
        self._queue: deque[_Frame] = deque()
        self._draining = False
        self.shared = SharedFrames(memory, self.limit) if memory else None

    # --- sending ---------------------------------------------------------------------------------

    def send(self, message: Message, run: Run | None) -> None:
        """Send ``message``: at once if the peer surely has room for it, else from a queue."""
        frame = self._frame(message)
        if not frame.pieces and self._claim(len(frame.body)):
            self._put(frame)
            return
        with self._lock:
            self._queue.append(frame)
            idle, self._draining = not self._draining, True
        if idle and run is None:
            self._drain()
        elif idle and run is not None:
            run(self._drain)

    def _frame(self, message: Message) -> _Frame:
        """``message`` as it is sent to this peer."""
        head, tensors = write_head(message)
        size = len(head) + sum(tensor.nbytes for tensor in tensors)
        if size > self.limit:
            raise MessageError(f"A message of {size} bytes, at most {self.limit} are sent.")
        if size <= ROOM:
            return _Frame(_SMALL, joined(head, tensors))
        reference = self.shared.write(head, tensors) if self.shared else None
        if reference is not None:
            return _Frame(_SHARED, reference)
        pieces = _bundled(tensors)
        if len(head) <= ROOM:
            return _Frame(_LARGE, head, 0, pieces)
        first = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        return _Frame(_LARGE, b"", len(head), [first, *pieces])

    def beat(self) -> None:
        """Tell the peer that this worker lives."""
        if self._claim(0):
            self._put(_Frame(_BEAT, b""))

    def bye(self) -> None:
        """Tell the peer that this worker leaves."""
        if self._claim(0):
            self._put(_Frame(_BYE, b""))

    def _claim(self, size: int) -> bool:
        """Count a frame as sent if the peer surely has room for it, and none is queued before."""
        with self._lock:
            ahead = self._sent - self._taken + 1
            free = not self._draining and ahead < WINDOW and ahead * size <= DIRECT
            self._sent += free
        return free

    def _drain(self) -> None:
        """Send what is queued, waiting for the peer where it has no room."""
        while True:
            with self._lock:
                if not self._queue:
                    self._draining = False
                    return
                frame = self._queue.popleft()
                self._sent += 1
            try:
                self._put(frame)
            except Cut:  # who waits for the answer learns it from the receiver
                with self._lock:
                    self._queue.clear()

    def _put(self, frame: _Frame) -> None:
        """Write a frame, and its pieces after it."""
        data = bytearray(_PRELUDE.pack(frame.kind, self._ready, len(frame.body), frame.large))
        data += frame.body
        tensor = torch.frombuffer(data, dtype=torch.uint8)
        self._group.send(tensor, _FRAMES)
        for tensor in frame.pieces:
            if not tensor.numel():
                continue
            for piece in torch.split(raw(tensor), PIECE):
                self._group.send(piece, _PIECES)

    # --- receiving -------------------------------------------------------------------------------

    def receive(self) -> Message | None:
        """The next message, or None for a sign of life."""
        at = self._received % WINDOW
        if self._stale == REPOST:
            self._repost()
        self._group.wait(self._posted[at], self._silence)
        view = self._views[at]
        kind, taken, size, large = _PRELUDE.unpack_from(view)
        body = bytes(view[_PRELUDE.size : _PRELUDE.size + size])
        self._received += 1
        self._stale += 1
        self._taken = max(self._taken, taken)
        if kind == _BEAT:
            return None
        if kind == _BYE:
            raise Cut("it was shut down.")
        return self._read(kind, memoryview(body), large)

    def _read(self, kind: int, body: memoryview, large: int) -> Message:
        """The message of a frame that came."""
        if kind not in (_SMALL, _LARGE, _SHARED):
            raise MessageError(f"A frame of kind {kind} is not known.")
        if kind == _SHARED and self.shared:
            return self.shared.read(body)
        if large:
            if large > self.limit:
                raise MessageError(f"A head of {large} bytes is larger than {self.limit}.")
            body = self._pieces(large).numpy().data
        head = read_head(body, self.limit)
        if kind == _SMALL:
            head.message.tensors = read_tensors(body, head.end, head.specs)
        else:
            head.message.tensors = self._unbundled(head.specs)
        return head.message

    def _unbundled(self, specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
        """The tensors of a large message, which `_bundled` sent."""
        places, end = layout(0, [spec.nbytes for spec in specs if spec.nbytes < TOGETHER])
        bundle, place = self._pieces(end), iter(places)
        tensors = []
        for spec in specs:
            if spec.nbytes < TOGETHER:
                start = next(place)
                data = bundle[start : start + spec.nbytes]
            else:
                data = self._pieces(spec.nbytes)
            tensors.append(restore(spec, data))
        return tuple(tensors)

    def _pieces(self, size: int) -> torch.Tensor:
        """The next ``size`` bytes of those that are sent in pieces."""
        data = torch.empty(size, dtype=torch.uint8)
        pieces = torch.split(data, PIECE) if size else ()
        for work in [self._group.post(piece, _PIECES) for piece in pieces]:
            self._group.wait(work, self._silence)
        return data

    def _repost(self) -> None:
        """Post the receives that were used; a few at once, as each tells the peer."""
        for number in range(self._received - self._stale, self._received):
            at = number % WINDOW
            self._posted[at] = self._group.post(self._buffers[at], _FRAMES)
        self._ready += self._stale
        self._stale = 0

    # --- both ------------------------------------------------------------------------------------

    def cut(self) -> None:
        """End the connection: every operation of either end raises, now and later."""
        self._group.cut()
        if self.shared:
            self.shared.close()


def _bundled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What is sent of the tensors of a large message: the small ones in one piece, then each other.

    A piece of its own costs a round trip.
    """
    small = [tensor for tensor in tensors if tensor.nbytes < TOGETHER]
    places, end = layout(0, [tensor.nbytes for tensor in small])
    bundle = torch.empty(end, dtype=torch.uint8)
    for place, tensor in zip(places, small):
        bundle[place : place + tensor.nbytes] = raw(tensor)
    return [bundle, *(tensor for tensor in tensors if tensor.nbytes >= TOGETHER)]
