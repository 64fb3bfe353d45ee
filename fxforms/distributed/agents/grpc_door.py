"""The server of a worker on gRPC, and how the workers find each other."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.experimental
import msgpack

from fxforms.distributed.agents.credentials import Credentials
from fxforms.distributed.agents.grpc_stream import SMALL, Context, Outgoing
from fxforms.distributed.options import Options
from fxforms.distributed.pool import Pool
from fxforms.errors import ArgumentError, RpcTimeoutError

SERVICE = "fxforms.Rpc"
RANK = "fxforms-rank"  # the metadata that says who calls
PIPE = "fxforms-pipe"  # and where it reads beside, a file descriptor
RETRY = 0.1  # seconds before a call that did not reach its peer is made again
_MAX_INT = (1 << 31) - 1


def channel_options(options: Options) -> list[tuple[str, int]]:
    """The settings of both ends."""
    limit = min(options.max_message_bytes + SMALL, _MAX_INT)  # with what a piece has beside
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
    ]


class Executor(concurrent.futures.Executor):
    """The interface that gRPC wants of a `Pool`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run ``fn`` in a thread of the pool."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._pool.submit(run)
        return future


class Door:
    """The server of one worker: others join here, and open their streams.

    Args:
        name, rank, size: this worker, and how many there are.
        address: where to listen, ``host:port``; port 0 takes a free one.
        credentials: what is asked of those who come.
        options: see `Options`.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        address: str,
        credentials: Credentials,
        options: Options,
    ) -> None:
        self._size = size
        self._streams: dict[int, Outgoing] = {}
        self._joined: dict[int, tuple[str, str, Any]] = {}
        self._changed = threading.Condition()
        self.pool = Pool(f"{name!r} server", lambda: None)
        self._server = grpc.server(Executor(self.pool), options=channel_options(options))
        methods = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream_handler()),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))
        self.address = self._listen(address, credentials)
        self._server.start()

    def _listen(self, address: str, credentials: Credentials) -> str:
        """Listen on ``address``; returns it with the port that was taken."""
        try:
            if credentials.server is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials.server)
        except RuntimeError as error:
            port, reason = 0, str(error)
        else:
            reason = ""
        if not port:
            raise ArgumentError(
                f"init_rpc(agent='grpc'): cannot listen on {address}. Is the port free, and the "
                f"address one of this machine? {reason}"
            )
        return f"{address.rpartition(':')[0]}:{port}"

    def streams(self, ranks: set[int], seconds: float) -> dict[int, Outgoing]:
        """The streams that the workers of ``ranks`` have opened, for this one to send on.

        Raises:
            RpcTimeoutError: not all have within ``seconds``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: ranks <= self._streams.keys(), seconds):
                missing = sorted(ranks - self._streams.keys())
                raise RpcTimeoutError(f"init_rpc: workers {missing} opened no stream.")
            return {rank: self._streams[rank] for rank in ranks}

    def close(self) -> None:
        """Serve nobody any more."""
        self._server.stop(0.2).wait(1.0)
        self.pool.close(5.0)

    def _stream_handler(self) -> Callable[[bytes, Context, Any], None]:
        """The handler that notes a stream, which lasts when it returns; others send on it."""

        def stream(_: bytes, context: Context, send: Callable[[bytes | None], None]) -> None:
            with self._changed:
                rank = number_in(context, RANK)
                if rank in self._streams:
                    context.abort(grpc.StatusCode.ALREADY_EXISTS, f"worker {rank} has a stream")
                self._streams[rank] = Outgoing(send, context)
                self._changed.notify_all()

        stream.experimental_non_blocking = True  # type: ignore[attr-defined]
        return stream

    # --- joining, on worker 0 --------------------------------------------------------------------

    def meet(
        self, name: str, rank: int, size: int, address: str, memory: list[Any], seconds: float
    ) -> list[Any]:
        """Note that a worker has joined; name, address and memory of all, when all have.

        Raises:
            ArgumentError: it does not fit those who are there.
            RpcTimeoutError: the others did not come in time.
        """
        with self._changed:
            names = {name for name, _, _ in self._joined.values()}
            if size != self._size or not 0 <= rank < size or rank in self._joined or name in names:
                raise ArgumentError(
                    f"init_rpc({name!r}, rank={rank}, world_size={size}): the world of "
                    f"{self._size} has workers {sorted(names)} of ranks {sorted(self._joined)}. "
                    "Give each its own name and rank, and all the same world_size."
                )
            self._joined[rank] = name, address, memory
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(self._joined) == self._size, seconds):
                self._joined.pop(rank, None)
                raise RpcTimeoutError(
                    f"init_rpc({name!r}): {len(self._joined) + 1} of {size} workers joined within "
                    f"{seconds:.3g} s. Is each started, with this MASTER_ADDR and MASTER_PORT?"
                )
            return [self._joined[rank] for rank in range(size)]

    def _join(self, data: bytes, context: Context) -> bytes:
        try:
            told = self.meet(*_read_join(data), _left(context))
        except ArgumentError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise  # not reached: abort raises
        packed: bytes = msgpack.packb(told)
        return packed


def _read_join(data: bytes) -> tuple[str, int, int, str, list[Any]]:
    """What a worker that wants to join says of itself."""
    try:
        name, rank, size, address, (pid, fd, token) = msgpack.unpackb(data)
        return str(name), int(rank), int(size), str(address), [int(pid), int(fd), str(token)]
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ArgumentError(f"This is no request to join: {error}.") from None


def _left(context: Context) -> float:
    """Seconds that a call may still take."""
    left: float | None = context.time_remaining()
    return 60.0 if left is None else left


def number_in(context: Context, key: str) -> int:
    """What the caller of a call says of itself under ``key``; -1 for nothing."""
    for name, value in context.invocation_metadata():
        if name == key and str(value).isdigit():
            return int(value)
    return -1


def join(channel: grpc.Channel, parts: list[Any], seconds: float) -> list[Any]:
    """Name, address and memory of all workers, from worker 0.

    Raises:
        ArgumentError: this worker does not fit the others.
        RpcTimeoutError: worker 0 is not there, does not take our certificate, or the rest is late.
    """
    call = channel.unary_unary(f"/{SERVICE}/Join")
    end = time.monotonic() + seconds
    reason = "nothing"
    while (left := end - time.monotonic()) > 0:
        try:
            told: list[Any] = msgpack.unpackb(call(msgpack.packb(parts), timeout=left))
            return told
        except grpc.RpcError as error:
            reason = str(error.details())
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise ArgumentError(reason) from None
            time.sleep(min(RETRY, max(0.0, left)))
    raise RpcTimeoutError(
        f"init_rpc({parts[0]!r}): worker 0 did not let this one in within {seconds:g} s. Is it "
        "started, do MASTER_ADDR and MASTER_PORT name it, and has one CA signed both certificates, "
        f"for those addresses? gRPC said: {reason[:300]}"
    )
