"""The links of the agents: what comes over them that is no message ends them, and nothing more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from fxforms.distributed.agents import gloo_pair
from fxforms.distributed.agents.gloo_link import BUFFER, GlooLink
from fxforms.distributed.agents.grpc import GrpcLink
from fxforms.distributed.agents.grpc_stream import Outgoing, Stream, frame, frames
from fxforms.distributed.agents.linked import Cut, Turn
from fxforms.distributed.agents.shared_memory import Probe
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.options import Options
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import MessageError

OPTIONS = Options(silence=2.0, max_message_bytes=1 << 24)
ONE, TWO = WorkerInfo("one", 0), WorkerInfo("two", 1)
PID = Probe().told()[0]


@contextmanager
def both_ends(memory: int) -> Iterator[tuple[GlooLink, GlooLink]]:
    """The two ends of a link, both in this process."""
    store = HashStore()
    gloo = gloo_pair.device("127.0.0.1")
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(GlooLink, store, gloo, TWO, ONE, OPTIONS, memory)
        one = GlooLink(store, gloo, ONE, TWO, OPTIONS, memory)
        yield one, other.result()
    one.cut()
    other.result().cut()


@pytest.fixture(params=[0, PID], ids=["no shared memory", "shared memory"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[GlooLink, GlooLink]]:
    with both_ends(request.param) as found:
        yield found


def tensors(*sizes: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(size) for size in sizes)


@pytest.mark.parametrize("sizes", [(3,), (BUFFER,), (1 << 18, 5, 0, 1 << 16), (9,) * 3000])
def test_messages_of_any_size(ends: tuple[GlooLink, GlooLink], sizes: tuple[int, ...]) -> None:
    one, two = ends
    with ThreadPoolExecutor(1) as pool:
        for id in range(3 * 64):  # three times around the window
            message = Message(
                b"payload",
                tensors(*(sizes if id % 50 == 0 else (4,))),
                id=id,
                type=MessageType.RREF_ACK,
            )
            one.send(message, pool.submit)
            arrived = two.receive()
            while arrived is None:
                arrived = two.receive()
            assert (arrived.id, arrived.payload) == (id, b"payload")
            assert all(map(torch.equal, arrived.tensors, message.tensors))
            # torch.set_rng_state reads from the start of the storage
            assert not any(tensor.storage_offset() for tensor in arrived.tensors)


def test_a_peer_that_does_not_read_blocks_nobody(ends: tuple[GlooLink, GlooLink]) -> None:
    one, two = ends
    start = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        for id in range(500):
            one.send(Message(b"x" * 1000, (), MessageType.RREF_ACK, id), pool.submit)
        assert time.monotonic() - start < OPTIONS.silence
        received = [two.receive() for _ in range(500)]
    assert sorted(message.id for message in received if message) == list(range(500))


def test_silence_and_farewell(ends: tuple[GlooLink, GlooLink]) -> None:
    one, two = ends
    one.beat()
    assert two.receive() is None
    with pytest.raises(Cut, match="heard"):
        two.receive()
    with pytest.raises(Cut, match="closed"):
        one.receive()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 5), st.integers(0, 1 << 31))
def test_frames_from_strangers(body: bytes, kind: int, large: int) -> None:
    """On a link whose group is replaced by one that has just received them."""
    link: Any = object.__new__(GlooLink)
    link.shared, link.limit = None, 1 << 20
    link._pieces = lambda size: torch.zeros(min(size, 100), dtype=torch.uint8)
    with pytest.raises(MessageError):
        link._read(kind, memoryview(body), large)


class Call:
    """A call of gRPC on either side: iterates over what comes, and keeps what is sent."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)
        self.sent: list[bytes | None] = []
        self.cancelled = False

    def __next__(self) -> bytes:
        return next(self._pieces)

    def cancel(self) -> None:
        self.cancelled = True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.broken = callback
        return True


def linked(pieces: list[bytes], memory: int = 0) -> tuple[GrpcLink, Call, Outgoing]:
    """The end of a link to which ``pieces`` come."""
    call = Call(pieces)
    outgoing = Outgoing(call.sent.append, call)
    return GrpcLink(TWO, Stream(call, outgoing), 1 << 20, memory), call, outgoing


PIECE = st.binary(max_size=60) | st.builds(
    lambda kind, body: frame(kind, len(body)) + body, st.integers(0, 3), st.binary(max_size=60)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECE, max_size=3))
def test_a_stream_from_a_stranger(pieces: list[bytes]) -> None:
    link, _, _ = linked(pieces, PID)
    ended = False
    while not ended:
        try:
            assert link.receive() is None  # a sign of life
        except (MessageError, Cut):
            ended = True


def test_small_messages_gather_behind_one_that_waits() -> None:
    link, call, outgoing = linked([frame(2, 0)])
    run: list[Callable[[], None]] = []
    messages = [Message(b"x", tensors(size), MessageType.RREF_ACK, size) for size in (1, 2, 3)]
    for message in messages:
        link.send(message, run.append)
    assert len(call.sent) == 1  # by this thread
    (rest,) = run  # in one piece, by another
    link.send(Message(b"", tensors(1 << 15), MessageType.RREF_ACK, 4), run.append)
    outgoing.end()
    rest()
    assert call.sent.pop() is None
    assert [len(list(frames(piece or b""))) for piece in call.sent] == [1, 2, 1]
    pieces = [piece or b"" for piece in call.sent]
    other, _, _ = linked(pieces)
    assert [getattr(other.receive(), "id", 0) for _ in range(4)] == [1, 2, 3, 4]
    assert outgoing.idle()


def test_a_message_goes_at_once_when_the_peer_was_heard() -> None:
    link, call, _ = linked([frame(2, 0)])
    run: list[Callable[[], None]] = []
    message = Message(b"x", (), MessageType.RREF_ACK, 1)
    link.send(message, run.append)
    assert link.receive() is None
    link.send(message, run.append)
    assert (len(call.sent), run) == (2, [])
    link.send(message, run.append)
    assert (len(call.sent), len(run)) == (2, 1)


def test_what_cannot_be_sent_ends_the_streams() -> None:
    call = Call([])

    def refuse(piece: bytes | None) -> None:
        raise ValueError("call error 8")

    link = GrpcLink(TWO, Stream(call, Outgoing(refuse, call)), 1 << 20, 0)
    with pytest.raises(Cut, match="8"):
        link.send(Message(b"", (), MessageType.RREF_ACK, 1), None)
    assert call.cancelled


def test_both_streams_end_where_one_breaks() -> None:
    link, call, _ = linked([])
    call.broken()
    assert call.cancelled
    call.cancelled = False
    link.bye()
    call.broken()
    assert not call.cancelled  # the peer says goodbye too
    link.cut()
    assert call.cancelled


def test_one_thread_at_a_time_has_the_turn() -> None:
    passed: list[None] = []
    kept, given = (Turn(lambda: passed.append(None)) for _ in range(2))
    assert not kept.over()  # its thread goes on to receive
    kept.end()
    assert not passed
    given.end()
    given.end()
    assert given.over()
    assert len(passed) == 1
