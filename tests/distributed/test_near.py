"""Between processes of one machine: shared memory, and pipes beside a link."""

from __future__ import annotations

import os
import select
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from distributed.test_links import PID, both_ends, tensors
from distributed.worlds import PROCESSES, TLS_ALONE, world

from fxforms.distributed.agents.gloo_link import BUFFER, GlooLink
from fxforms.distributed.agents.grpc import GrpcLink
from fxforms.distributed.agents.linked import Cut
from fxforms.distributed.agents.pipe_link import PipeLink
from fxforms.distributed.agents.shared_memory import Inbox, Outbox, Probe, shared
from fxforms.distributed.current import current_agent
from fxforms.distributed.message import Message, MessageType
from fxforms.errors import MessageError


@pytest.fixture
def near() -> Iterator[tuple[GlooLink, GlooLink]]:
    with both_ends(PID) as found:
        yield found


def test_a_segment_is_used_again_when_its_tensors_are_gone() -> None:
    outbox, inbox = Outbox(), Inbox(PID)
    first = outbox.take(1000)
    assert first is not None
    seen = inbox.open(first.fd, first.number, 1000)
    part = seen[10:20]
    first.data[10] = 7
    del seen
    second = outbox.take(1000)
    assert second is not None
    assert second.number != first.number  # a view of the first lives
    assert part[0] == 7
    del part
    third = outbox.take(900)
    assert third is not None
    assert third.number == first.number
    with pytest.raises(MessageError):
        inbox.open(first.fd, 99, 1 << 30)
    with pytest.raises(MessageError):
        inbox.open(10_000, 98, 10)
    outbox.close()


def test_segments_are_bounded() -> None:
    outbox = Outbox()
    taken = [outbox.take(100) for _ in range(70)]
    assert sum(segment is not None for segment in taken) == 64
    outbox.close()


def test_memory_of_another_machine_is_not_shared() -> None:
    probe = Probe()
    pid, fd, token = probe.told()
    assert shared((pid, fd, token))
    assert not shared((pid, fd, "00" * 16))
    assert not shared((pid, 9999, token))
    assert not shared((pid, -1, token))
    probe.close()


def piped(gloo: GlooLink, own: tuple[int, int], other: int) -> PipeLink:
    assert gloo.shared is not None
    return PipeLink(gloo, gloo.shared, PID, own, other)


@pytest.mark.parametrize("agent", PROCESSES)
def test_processes_of_one_machine_send_by_pipe(agent: str, tmp_path: Path) -> None:
    with world(agent, 2, tmp_path):
        sends_by = current_agent()._links[1]  # type: ignore[attr-defined]
        assert isinstance(sends_by, GrpcLink if agent == TLS_ALONE else PipeLink)


def test_what_is_no_pipe_is_never_written_to(near: tuple[GlooLink, GlooLink]) -> None:
    with tempfile.TemporaryFile() as file:
        link = piped(near[0], os.pipe(), file.fileno())
        with ThreadPoolExecutor(1) as pool:
            link.send(Message(b"by the link", (), MessageType.RREF_ACK, 1), pool.submit)
        arrived = near[1].receive()
        assert arrived is not None
        assert arrived.payload == b"by the link"
        assert os.fstat(file.fileno()).st_size == 0
        link.cut()
        with pytest.raises(Cut):
            link.receive()


def test_pipes_beside_a_link(near: tuple[GlooLink, GlooLink]) -> None:
    pipes = os.pipe(), os.pipe()
    one, two = piped(near[0], pipes[0], pipes[1][1]), piped(near[1], pipes[1], pipes[0][1])
    with ThreadPoolExecutor(1) as pool:
        for id, sizes in enumerate([(3,), (1000,), (BUFFER,), (1 << 18, 5, 0)]):
            message = Message(b"payload", tensors(*sizes), MessageType.RREF_ACK, id)
            one.send(message, pool.submit)
            arrived = two.receive()
            assert arrived is not None
            assert (arrived.id, arrived.payload) == (id, b"payload")
            assert all(map(torch.equal, arrived.tensors, message.tensors))
        full = 500  # more than the pipe takes: the rest goes by the link
        for id in range(full):
            one.send(Message(b"x" * 1000, (), MessageType.RREF_ACK, id), pool.submit)
        got = []
        while len(got) < full:
            from_pipe = select.select([pipes[1][0]], [], [], 0)[0] or two._frames
            message_or_none = two.receive() if from_pipe else near[1].receive()
            got += [message_or_none.id] if message_or_none else []
    assert sorted(got) == list(range(full))
    os.write(pipes[1][1], b"\1\0\7?")
    with pytest.raises(MessageError, match="kind 7"):
        two.receive()
    for pipe in (one, two):
        pipe.cut()
        with pytest.raises(Cut):
            pipe.receive()
        with pytest.raises(Cut):
            pipe.send(message, None)
