"""What every agent does, on workers that are threads and workers that are processes."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from distributed import remote_functions as rf
from distributed.worlds import PROCESSES, until, world

from fxforms import distributed as fd
from fxforms.distributed.current import current_agent
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.pool import MAX_THREADS
from fxforms.errors import (
    ArgumentError,
    MessageError,
    RemoteError,
    RpcError,
    RpcTimeoutError,
    WorkerLostError,
)

AGENTS = ("local", *PROCESSES)
WAIT = 30.0


@pytest.fixture(scope="module", params=AGENTS)
def agent(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    with world(request.param, 3, tmp_path_factory.mktemp("certificates")):
        yield request.param


@pytest.fixture(autouse=True)
def _settled(agent: str) -> Iterator[None]:
    """No request of this worker is left unanswered by a test."""
    yield
    assert until(lambda: not fd.debug_info()["requests"] or agent == "local")


def equal(a: Any, b: Any) -> bool:
    """True if two values, with tensors in them, are the same."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.float(), b.float())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, rf.Pair):
        return equal((a.left, a.right), (b.left, b.right))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("to", ["w0", "w1", 2])
def test_an_operator_and_a_function(to: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert equal(fd.rpc_sync(to, torch.add, (x, 1)), x + 1)
    assert equal(fd.rpc_sync(to, torch.add, (x, x), {"alpha": 3}), 4 * x)
    assert equal(fd.rpc_sync(to, rf.double, args=(x,), kwargs={"plus": 0.5}), 2 * x + 0.5)
    assert equal(fd.rpc_async(to, torch.ops.aten.mul, (x, 3)).wait(), 3 * x)


def test_plain_data_survives() -> None:
    x = torch.ones(2)
    data = [
        (1, -(1 << 70), 2.5, 1 + 2j, None, True, "ä", b"\0", float("inf")),
        {"a": [x, (x, [])], 3: {}, (1, "k"): x + 1},
        (torch.float64, torch.strided, torch.channels_last, torch.device("cpu", 0)),
        (torch.Size([2, 3]), slice(1, None, 2)),
        rf.Point(x, [1]),
        rf.Pair(left=(x,), right=rf.Point(1, 2)),
    ]
    assert equal(fd.rpc_sync("w1", rf.echo, (data,)), data)


def test_one_tensor_in_two_places_stays_one() -> None:
    x = torch.ones(2)
    a, b = fd.rpc_sync("w1", rf.echo, ([x, x],))
    assert a is b


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "bool", "uint8", "int64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (100, 100)])
def test_tensors_of_any_kind(dtype: str, shape: tuple[int, ...]) -> None:
    x = (torch.randn(shape) * 3).to(getattr(torch, dtype))
    back = fd.rpc_sync("w2", rf.echo, (x,))
    assert back.dtype == x.dtype
    assert back.shape == x.shape
    assert torch.equal(back, x)


def test_views_arrive_as_they_look() -> None:
    x = torch.randn(40, 50, dtype=torch.complex64)
    for view in (x.t(), x[::2, 1:], x.conj(), x.imag, x[0, 0], x.real.expand(2, 40, 50)):
        assert torch.equal(fd.rpc_sync("w1", rf.echo, (view,)), view)


def test_large_messages() -> None:
    parts = [torch.randn(1 << n) for n in (10, 15, 20, 22)]
    text = "x" * 100_000
    back = fd.rpc_sync("w1", rf.echo, ([*parts, text],), timeout=WAIT)
    assert all(map(torch.equal, back[:-1], parts))
    assert back[-1] == text
    again = fd.rpc_sync("w1", rf.echo, (back,), timeout=WAIT)  # while `back` lives
    back[0].zero_()
    assert all(map(torch.equal, again[:-1], parts))


def test_nothing_is_shared() -> None:
    x = torch.zeros(3)
    big = torch.zeros(1 << 16)
    assert equal(fd.rpc_sync("w1", rf.add_in_place, (x,)), torch.ones(3))
    assert fd.rpc_sync("w1", rf.add_in_place, (big,)).sum() == 1 << 16
    assert x.sum() == big.sum() == 0


def test_calls_that_call_back() -> None:
    path = ["w1", "w0", "w2", "w1", "w0"]
    assert fd.rpc_sync("w2", rf.chain, (path, torch.ones(1))).item() == 32


def test_64_calls_in_flight() -> None:
    futures = [fd.rpc_async(f"w{n % 2 + 1}", rf.double, (torch.full((5,), n),)) for n in range(64)]
    for n, future in enumerate(futures):
        assert torch.equal(future.wait(WAIT), torch.full((5,), 2 * n))


def test_many_threads() -> None:
    if current_agent().__class__.__name__ == "LocalAgent":
        pytest.skip("a thread is a worker")
    wrong: list[int] = []

    def work(n: int) -> None:
        x = torch.full((1 << (n + 4),), float(n))
        for _ in range(10):
            if not torch.equal(fd.rpc_sync("w1", torch.mul, (x, 2), timeout=WAIT), 2 * x):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert wrong == []


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("value", ValueError),
        ("key", KeyError),
        ("refused", rf.Refused),
        ("unknown", RemoteError),
        ("exit", RemoteError),
        ("interrupt", RemoteError),
        ("stop", StopIteration),
        ("underivable", RemoteError),
        ("occupied", RemoteError),
        ("group", RemoteError),
    ],
)
def test_an_error_keeps_type_text_and_traceback(kind: str, raised: type[Exception]) -> None:
    with pytest.raises(raised, match="not this") as caught:
        fd.rpc_sync("w1", rf.fail, (kind, "not this"))
    error = caught.value
    assert isinstance(error, RemoteError)
    assert isinstance(error, RpcError)
    assert error.worker == "w1"
    assert "'w1'" in str(error)
    assert "in fail" in error.remote_traceback
    assert "in fail" in "".join(error.__notes__)


def test_an_error_of_a_third_worker() -> None:
    with pytest.raises(ValueError, match="deep") as caught:
        fd.rpc_async("w1", rf.fail_on, ("w2", "value", "deep")).wait(WAIT)
    assert isinstance(caught.value, RemoteError)
    assert caught.value.remote_type == "builtins:ValueError"
    assert "'w2'" in caught.value.remote_traceback


def test_what_is_not_registered_does_not_run() -> None:
    def inner() -> None: ...

    for function in (inner, print, eval, torch.from_file, torch.save, rf.Plain, "os:system"):
        with pytest.raises(ArgumentError, match="registered"):
            fd.rpc_sync("w1", function)
    agent = current_agent()
    for name in ("aten::from_file", "aten::save", "aten::_foo", "prim::print", "add"):
        command = fd.calls.ScriptCall(name, [], {}, fd.calls.modes.capture())
        with pytest.raises(RemoteError, match="operator"):
            agent.ask(agent.worker("w1"), command.to_message())
    command = fd.calls.PythonCall("os:system", ["true"], {}, fd.calls.modes.capture())
    with pytest.raises(RemoteError, match="not registered"):
        agent.ask(agent.worker("w1"), command.to_message())


def test_wrong_arguments_of_a_call() -> None:
    with pytest.raises(ArgumentError, match="no worker 'w9'"):
        fd.rpc_sync("w9", rf.echo, (1,))
    with pytest.raises(MessageError, match="cannot be sent"):
        fd.rpc_sync("w1", rf.echo, (object(),))
    with pytest.raises(MessageError, match="sparse"):
        fd.rpc_sync("w1", rf.echo, (torch.eye(2).to_sparse(),))
    with pytest.raises(MessageError, match="Register the class"):
        fd.rpc_sync("w1", rf.echo, (torch.max(torch.eye(2), 0),))
    with pytest.raises(RemoteError, match="cannot be sent"):
        fd.rpc_sync("w1", rf.unsendable)
    for timeout in (0, -2, float("nan"), 1e9):
        with pytest.raises(ArgumentError, match="timeout"):
            fd.rpc_sync("w1", rf.echo, (1,), timeout=timeout)


def test_the_modes_of_the_caller_go_along() -> None:
    assert fd.rpc_sync("w1", rf.modes) == (True, torch.float32, False)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert fd.rpc_sync("w1", rf.modes) == (False, torch.float32, True)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert fd.rpc_sync("w1", rf.modes) == (True, torch.float64, False)
        end = time.monotonic() + 2.5
        while time.monotonic() < end:  # the others wait in shutdown, with float32, and ask again
            assert fd.rpc_sync("w1", torch.ones, (2,)).dtype == torch.float64
            assert torch.get_default_dtype() == torch.float64
            time.sleep(0.02)
    finally:
        torch.set_default_dtype(before)
    assert fd.rpc_sync("w1", rf.modes) == (True, torch.float32, False)


def test_a_slow_worker() -> None:
    start = time.monotonic()
    with pytest.raises(RpcTimeoutError, match="'w1'"):
        fd.rpc_sync("w1", rf.sleep, (1.0,), timeout=0.2)
    with pytest.raises(TimeoutError, match="'w2'"):
        fd.rpc_async("w2", rf.sleep, (1.0,), timeout=0.2).wait()
    assert time.monotonic() - start < 10
    assert fd.rpc_sync("w1", rf.sleep, (0.0,)) == "w1"


def test_a_future() -> None:
    future = fd.rpc_async("w1", rf.double, (3,))
    assert future.then(lambda done: done.value() + 1).wait(WAIT) == 7
    assert future.done()
    cancelled = fd.rpc_async("w1", rf.sleep, (0.2,))
    assert cancelled.cancel()
    assert fd.rpc_sync("w1", rf.echo, (1,)) == 1


def test_a_request_that_is_none() -> None:
    agent = current_agent()
    for type in (MessageType.FORWARD_AUTOGRAD_REQ, MessageType.PYTHON_CALL):
        with pytest.raises(RemoteError, match="payload"):
            agent.ask(agent.worker("w1"), Message(b"\xc1", (), type), WAIT)
    with pytest.raises(RpcTimeoutError):  # an answer to nothing is dropped
        agent.ask(agent.worker("w1"), Message(b"", (), MessageType.PYTHON_RET), 0.3)
    assert fd.rpc_sync("w1", rf.echo, (1,)) == 1


def test_worker_infos() -> None:
    assert fd.get_worker_info() == fd.WorkerInfo("w0", 0)
    assert fd.get_worker_info("w2") == fd.WorkerInfo("w2", 2)
    assert fd.rpc_sync(fd.get_worker_info("w2"), rf.sleep, (0,)) == "w2"


def test_more_calls_at_once_than_there_are_threads() -> None:
    """Those without one are refused, with the RRefs in them released; the worker serves on."""
    rref = fd.remote("w2", torch.ones, (2,))
    calls = [fd.rpc_async("w1", rf.sleep, (4.0,)) for _ in range(MAX_THREADS - 8)]
    calls += [fd.rpc_async("w1", rf.chain, ([], [rref])) for _ in range(200)]
    ended = [call.exception(WAIT) for call in calls]
    refused = [error for error in ended if error is not None]
    assert 0 < len(refused) <= 200 + 32  # the agent and earlier tests have threads too
    for error in refused:
        assert isinstance(error, WorkerLostError)
        assert "'w1' is busy in 512 threads" in str(error)
    assert fd.rpc_sync("w1", rf.double, (2,)) == 4
    del rref, calls, ended, refused, error
    assert until(lambda: not gc.collect() and not any(rrefs_of("w0", "w1", "w2")))


def rrefs_of(*workers: str) -> list[int]:
    counts = [fd.rpc_sync(worker, rf.held) for worker in workers]
    return [n for each in counts for kind, n in each.items() if "rrefs" in kind or "forks" in kind]
