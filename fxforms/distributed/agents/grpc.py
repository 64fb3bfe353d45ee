"""Workers that are processes on any network: gRPC with mutual TLS.

Each worker opens a stream from each other. A worker whose certificate the CA
has signed is trusted to be the one that it says it is. Between processes of one
machine and one user, which the streams have let in, messages go past gRPC.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from fxforms.distributed.agent import Respond, RpcAgent
from fxforms.distributed.agents.credentials import load
from fxforms.distributed.agents.grpc_door import (
    PIPE,
    RANK,
    SERVICE,
    Door,
    channel_options,
    join,
    number_in,
)
from fxforms.distributed.agents.grpc_stream import SMALL, Stream, frame, frames
from fxforms.distributed.agents.linked import Cut, LinkedAgent, Run
from fxforms.distributed.agents.pipe_link import PipeLink
from fxforms.distributed.agents.shared_memory import Probe, SharedFrames, shared
from fxforms.distributed.frame import decode, joined, write_head
from fxforms.distributed.message import Message
from fxforms.distributed.options import Options, master
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import MessageError

_WHOLE, _REFERENCE, _BEAT = range(3)  # kinds of frames
_SILENT = "nothing was heard of it for too long."


class GrpcLink:
    """One worker's end of the streams to and from another."""

    def __init__(self, peer: WorkerInfo, stream: Stream, limit: int, memory: int) -> None:
        self.peer = peer
        self.limit = limit
        self.shared = SharedFrames(memory, limit) if memory else None
        self._stream = stream
        self._frames: deque[tuple[int, memoryview]] = deque()
        self.heard = time.monotonic()
        self.silent = False

    def send(self, message: Message, run: Run | None) -> None:
        """Send ``message``, large tensors through shared memory where there is some."""
        head, tensors = write_head(message)
        size = len(head) + sum(tensor.nbytes for tensor in tensors)
        if size > self.limit:
            raise MessageError(f"A message of {size} bytes, at most {self.limit} are sent.")
        reference = None
        if self.shared and size > SMALL:
            reference = self.shared.write(head, tensors)
        if reference is None:
            data = joined(frame(_WHOLE, size) + head, tensors)
        else:
            data = frame(_REFERENCE, len(reference)) + reference
        self._stream.outgoing.put(data, run)

    def receive(self) -> Message | None:
        """The next message."""
        while not self._frames:
            self._frames.extend(self._read())
        kind, body = self._frames.popleft()
        if kind == _REFERENCE and self.shared:
            return self.shared.read(body)
        if kind == _BEAT:
            return None
        return decode(body, self.limit)

    def _read(self) -> Iterator[tuple[int, memoryview]]:
        """The frames of the next piece that comes."""
        try:
            data = next(self._stream.incoming)
        except StopIteration:
            raise Cut("it was shut down.") from None
        except grpc.RpcError as error:
            reason = f"its stream ended; the process may have died. {_details(error)}"
            raise Cut(_SILENT if self.silent else reason) from None
        self.heard = time.monotonic()
        self._stream.outgoing.unheard = False
        return frames(data)

    def beat(self, silence: float, run: Run) -> None:
        """Tell the peer that this worker lives; end the streams if it said nothing for so long."""
        if self._stream.outgoing.idle():
            self._stream.outgoing.put(frame(_BEAT, 0), run)
        if time.monotonic() - self.heard > silence:
            self.silent = True
            self._stream.cancel()

    def bye(self) -> None:
        """Tell the peer that this worker leaves."""
        self._stream.outgoing.end()

    def cut(self) -> None:
        """End the streams."""
        self._stream.cancel()
        if self.shared:
            self.shared.close()


def _details(error: Any) -> str:
    """What gRPC says of an error."""
    return str(error.details())[:200]


class GrpcAgent(LinkedAgent):
    """A worker that is a process, with a stream from each other."""

    def start(self, joined: _Joining, links: list[GrpcLink], pipes: list[PipeLink]) -> None:
        """Receive from all; what joining took is given back when this agent ends."""
        self._joining = joined
        self.connect([*links, *pipes])
        self.pool.submit(self._beat, links, joined.options.silence)

    def _beat(self, links: list[GrpcLink], silence: float) -> None:
        while not self.closed.wait(silence / 4):
            for link in links:
                with suppress(Cut):
                    link.beat(silence, self.pool.submit)

    def _close(self) -> None:
        super()._close()
        self._joining.close()


class _Joining:
    """What one worker needs to join, and keeps."""

    def __init__(self, name: str, rank: int, size: int, options: Options) -> None:
        self.options, self.rank = options, rank
        host, port = master("grpc")
        self._first = f"{host}:{port}"
        self._credentials = load(options, options.host, host)
        self._channels: list[grpc.Channel] = []
        self._probe = Probe()
        self._pipes: dict[int, tuple[int, int]] = {}  # made here, by the rank that writes to it
        address = self._first if rank == 0 else f"{options.host}:0"
        try:
            self._door = Door(name, rank, size, address, self._credentials, options)
        except BaseException:
            self._probe.close()
            raise

    def meet(self, name: str, size: int) -> list[Any]:
        """Name, address and memory of all workers, when all have joined."""
        memory = self._probe.told() if self.options.shared_memory else (0, -1, "")
        rank, address, seconds = self.rank, self._door.address, self.options.init_timeout
        if rank == 0:
            return self._door.meet(name, rank, size, address, list(memory), seconds)
        parts = [name, rank, size, address, list(memory)]
        return join(self._channel(self._first), parts, seconds)

    def links(self, told: list[Any]) -> tuple[list[GrpcLink], list[PipeLink]]:
        """The streams from and to each other worker, and pipes to those that share memory."""
        limit = self.options.max_message_bytes
        others = set(range(len(told))) - {self.rank}
        near = {rank: told[rank][2][0] for rank in others if self._is_near(told[rank][2])}
        self._pipes = {rank: os.pipe() for rank in near}
        incoming = {rank: self._open(rank, told[rank][1]) for rank in others}
        outgoing = self._door.streams(others, self.options.init_timeout)
        links, pipes = [], []
        for rank in others:
            stream = Stream(incoming[rank], outgoing[rank])
            link = GrpcLink(WorkerInfo(told[rank][0], rank), stream, limit, near.get(rank, 0))
            links.append(link)
            if link.shared:
                other = number_in(outgoing[rank].context, PIPE)
                own = self._pipes.pop(rank)
                pipes.append(PipeLink(link, link.shared, near[rank], own, other))
        return links, pipes

    def _is_near(self, memory: tuple[int, int, str]) -> bool:
        return self.options.shared_memory and shared(memory)

    def _open(self, rank: int, address: str) -> Any:
        """What the worker at ``address`` sends to this one."""
        call = self._channel(address).unary_stream(f"/{SERVICE}/Stream")
        _, pipe = self._pipes.get(rank, (-1, -1))
        return call(b"", metadata=((RANK, str(self.rank)), (PIPE, str(pipe))))

    def _channel(self, address: str) -> grpc.Channel:
        options = channel_options(self.options)
        secure = self._credentials.channel
        if secure is None:
            channel = grpc.insecure_channel(address, options)
        else:
            channel = grpc.secure_channel(address, secure, options)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        """Close the channels and the server, and the pipes that no link has."""
        for ends in self._pipes.values():
            for fd in ends:
                os.close(fd)
        self._pipes = {}
        for channel in self._channels:
            channel.close()
        self._door.close()
        self._probe.close()


def start(name: str, rank: int, size: int, respond: Respond, options: Options) -> RpcAgent:
    """Join the world at MASTER_ADDR and MASTER_PORT as worker ``name``.

    Raises:
        ArgumentError: certificates are missing, or the workers do not agree.
        RpcTimeoutError: not all workers joined in time.
    """
    joining = _Joining(name, rank, size, options)
    try:
        told = joining.meet(name, size)
        workers = [WorkerInfo(name, id) for id, (name, _, _) in enumerate(told)]
        links, pipes = joining.links(told)
    except BaseException:
        joining.close()
        raise
    agent = GrpcAgent(workers[rank], workers, respond, options.rpc_timeout)
    agent.start(joining, links, pipes)
    return agent
