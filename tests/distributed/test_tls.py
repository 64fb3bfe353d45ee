"""The gRPC agent runs nothing for those who have no certificate of the world's CA."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgpack
import pytest
from distributed.worlds import assert_nothing_held, environment, free_port

from benchmarks.distributed.certificates import Authority, authority
from fxforms import distributed as fd
from fxforms.distributed.agents.grpc_stream import frame, frames
from fxforms.distributed.calls import call_command
from fxforms.distributed.frame import decode, encode
from fxforms.distributed.message import MessageType
from fxforms.errors import ArgumentError, RpcTimeoutError

RAN: list[str] = []
WAIT = 3.0
LIMIT = 1 << 20


@fd.register
def note(text: str) -> None:
    RAN.append(text)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> str:
    port = free_port()
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    return f"127.0.0.1:{port}"


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path, "ca")


@pytest.fixture
def waiting(ca: Authority, address: str) -> Iterator[str]:
    """The address of a worker 0 that waits for worker 1, and serves it."""

    def serve() -> None:
        options = {**ca.issue("w0"), "init_timeout": 60.0}
        fd.init_rpc("w0", rank=0, world_size=2, agent="grpc", options=options)
        fd.shutdown(timeout=WAIT)

    RAN.clear()
    thread = threading.Thread(target=serve)
    thread.start()
    yield address
    thread.join(60)
    assert not thread.is_alive()
    assert_nothing_held()


def stranger(who: str, address: str, ca: Authority, folder: Path) -> grpc.Channel:
    """A channel of somebody who does not belong to the world."""
    if who == "no TLS":
        return grpc.insecure_channel(address)
    own = {
        "no certificate": {},
        "another CA": authority(folder, "other").issue("stranger"),
        "expired": ca.issue("old", days=-1),
    }[who]
    return channel(address, own | {"ca": ca.path})


def channel(address: str, options: dict[str, str]) -> grpc.Channel:
    """A channel with the certificate and the CA that ``options`` name, as far as they do."""
    data = {name: Path(path).read_bytes() for name, path in options.items()}
    credentials = grpc.ssl_channel_credentials(
        data.get("ca"), data.get("key"), data.get("certificate")
    )
    return grpc.secure_channel(address, credentials, [("grpc.use_local_subchannel_pool", 1)])


def act_as_worker_1(
    channel: grpc.Channel, text: str, served: grpc.ServerCredentials
) -> MessageType:
    """Join as worker 1 and have worker 0 call ``note(text)``; the type of its answer."""
    message = call_command("test", note, (text,), None).to_message()
    message.id = 7
    body = encode(message)
    leave = threading.Event()

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield frame(0, len(body)) + body
        leave.wait(WAIT)

    handler = grpc.unary_stream_rpc_method_handler(stream)
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("fxforms.Rpc", {"Stream": handler}),)
        )
        port = server.add_secure_port("127.0.0.1:0", served)
        server.start()
        try:
            parts = msgpack.packb(["w1", 1, 2, f"127.0.0.1:{port}", [0, -1, ""]])
            channel.unary_unary("/fxforms.Rpc/Join")(parts, timeout=WAIT, wait_for_ready=True)
            incoming = channel.unary_stream("/fxforms.Rpc/Stream")(
                b"", metadata=(("fxforms-rank", "1"),), timeout=WAIT, wait_for_ready=True
            )
            ((_, answer),) = frames(next(incoming))
            return decode(answer, LIMIT).type
        finally:
            leave.set()
            server.stop(None)


def server_of(options: dict[str, str]) -> grpc.ServerCredentials:
    """What a server with these files shows; it lets anybody in."""
    key, certificate = (Path(options[name]).read_bytes() for name in ("key", "certificate"))
    return grpc.ssl_server_credentials([(key, certificate)])


@pytest.mark.parametrize("who", ["no TLS", "no certificate", "another CA", "expired"])
def test_a_stranger_gets_nothing_run(who: str, waiting: str, ca: Authority, tmp_path: Path) -> None:
    own = ca.issue("w1")
    with stranger(who, waiting, ca, tmp_path) as strange, pytest.raises(grpc.RpcError):
        act_as_worker_1(strange, "a stranger", server_of(own))
    assert RAN == []
    with channel(waiting, own) as right:
        answer = act_as_worker_1(right, "the right one", server_of(own))
    assert answer is MessageType.PYTHON_RET
    assert RAN == ["the right one"]


@pytest.mark.parametrize("who", ["another CA", "expired"])
def test_nothing_is_taken_from_a_strange_server(
    who: str, waiting: str, ca: Authority, tmp_path: Path
) -> None:
    """Somebody else listens where worker 1 said that it does."""
    other = ca.issue("old", -1) if who == "expired" else authority(tmp_path, "other").issue("x")
    with channel(waiting, ca.issue("w1")) as right, pytest.raises((grpc.RpcError, StopIteration)):
        act_as_worker_1(right, "a strange server", server_of(other))
    assert RAN == []


def test_a_worker_says_why_it_cannot_join(tmp_path: Path, address: str) -> None:
    options = authority(tmp_path, "ca").issue("w1") | {"init_timeout": 0.5}
    with pytest.raises(RpcTimeoutError, match="has one CA signed both"):
        fd.init_rpc("w1", rank=1, world_size=2, agent="grpc", options=options)
    assert_nothing_held()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "are missing"),
        ({"ca": "x", "key": "y"}, "are missing"),
        ({"ca": "x", "key": "y", "certificate": "z"}, "No such file"),
        ({"insecure": True, "host": "0.0.0.0"}, "loopback"),
        ({"insecure": True, "ca": "x"}, "no certificates"),
    ],
)
def test_no_certificate_no_network(options: dict[str, str], said: str, address: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        fd.init_rpc("w0", rank=0, world_size=1, agent="grpc", options=options)
    assert_nothing_held()


def test_without_tls_the_meeting_point_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ArgumentError, match=r"192\.0\.2\.1"):
        fd.init_rpc("w1", rank=1, world_size=2, agent="grpc", options={"insecure": True})
