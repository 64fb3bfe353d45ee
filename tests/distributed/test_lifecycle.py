"""How workers start and end, and what is said when they cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from distributed import remote_functions as rf
from distributed.worlds import ROOT, assert_nothing_held, environment, free_port, until

import fxforms
from fxforms import distributed as fd
from fxforms.distributed.pool import Pool
from fxforms.errors import ArgumentError, RpcTimeoutError

OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"init_timeout": 0.5},
    "process_group": {"init_timeout": 0.5},
    "grpc": {"init_timeout": 0.5, "insecure": True},
}


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> int:
    port = free_port()
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    return port


@pytest.mark.parametrize("agent", list(OPTIONS))
@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_do_not_come(
    agent: str, rank: int, meeting: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RpcTimeoutError, match=f"w{rank}"):
        fd.init_rpc(f"w{rank}", rank=rank, world_size=2, agent=agent, options=OPTIONS[agent])
    assert_nothing_held()
    assert capfd.readouterr().err == ""  # torch's store would print its C++ stack, and try twice


@pytest.mark.parametrize("agent", list(OPTIONS))
def test_alone(agent: str, meeting: int) -> None:
    for _ in range(2):
        fd.init_rpc("alone", rank=0, world_size=1, agent=agent, options=OPTIONS[agent])
        assert fd.rpc_sync("alone", rf.double, (4,)) == 8
        with pytest.raises(ArgumentError, match="'alone' already"):
            fd.init_rpc("again", rank=0, world_size=1, agent=agent, options=OPTIONS[agent])
        fd.shutdown()
        assert_nothing_held()
    fd.shutdown()  # nothing to do
    with pytest.raises(ArgumentError, match="init_rpc first"):
        fd.rpc_sync("alone", rf.double, (4,))


@pytest.mark.parametrize("agent", ["process_group", "grpc"])
def test_a_port_that_is_taken(agent: str, meeting: int) -> None:
    with (
        socket.create_server(("127.0.0.1", meeting)),
        pytest.raises(ArgumentError, match="listen"),
    ):
        fd.init_rpc("w0", rank=0, world_size=1, agent=agent, options=OPTIONS[agent])
    assert_nothing_held()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rank": 2}, "rank=2"),
        ({"name": ""}, "a name"),
        ({"agent": "tensorpipe"}, "tensorpipe"),
        ({"options": {"timeout": 3}}, "timeout"),
        ({"options": {"rpc_timeout": -1}}, "rpc_timeout"),
        ({"agent": "process_group"}, "MASTER_ADDR"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    given = {"name": "w", "rank": 0, "world_size": 2, "agent": "local"} | arguments
    with pytest.raises(ArgumentError, match=said):
        fd.init_rpc(given.pop("name"), **given)


@pytest.mark.parametrize("agent", ["grpc", "process_group"])
def test_workers_that_do_not_agree(agent: str, meeting: int) -> None:
    """Two processes that both say that they are ``same``; here as two threads."""
    raised: list[type[BaseException]] = []

    def start(rank: int) -> None:
        options = {**OPTIONS[agent], "init_timeout": 2.0}
        try:
            fd.init_rpc("same", rank=rank, world_size=2, agent=agent, options=options)
        except (ArgumentError, RpcTimeoutError) as error:
            raised.append(type(error))

    threads = [threading.Thread(target=start, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ArgumentError in raised
    assert len(raised) == 2
    assert_nothing_held()


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (3, 3)])
def test_what_each_is_told(sizes: tuple[int, int], meeting: int) -> None:
    """Two workers, of worlds that differ or of one that lacks a third."""
    said: list[str] = []

    def start(rank: int) -> None:
        options = {"init_timeout": 20.0 if sizes[0] != sizes[1] or rank else 0.5}
        try:
            fd.init_rpc(f"w{rank}", rank=rank, world_size=sizes[rank], options=options)
        except (ArgumentError, RpcTimeoutError) as error:
            said.append(str(error))

    threads = [threading.Thread(target=start, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(said) == 2
    told = str([["w0", sizes[0]], ["w1", sizes[1]]])
    for text in said:
        assert (told if sizes[0] != sizes[1] else "of rank [2] have not joined") in text
    assert_nothing_held()


def test_threads_that_do_not_agree() -> None:
    first = threading.Thread(
        target=lambda: fd.init_rpc("w0", rank=0, world_size=2, agent="local") or fd.shutdown()
    )
    first.start()
    for name, rank, size in (("w0", 1, 2), ("w1", 1, 3)):
        with pytest.raises(ArgumentError, match="'w0'"):
            fd.init_rpc(name, rank=rank, world_size=size, agent="local")
    fd.init_rpc("w1", rank=1, world_size=2, agent="local")
    fd.shutdown()
    first.join(10)
    assert_nothing_held()


def test_an_agent_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("grpc", "fxforms.distributed.agents.grpc"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArgumentError, match=r"fxforms\[grpc\]"):
        fd.init_rpc("w", rank=0, world_size=1, agent="grpc")


def test_importing_fxforms_imports_none_of_it() -> None:
    code = (
        "import sys, fxforms; "
        "print([m for m in ('fxforms.distributed', 'grpc', 'msgpack') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_only_functions_with_a_name_are_registered() -> None:
    for nameless in (lambda: 1, OPTIONS, "f"):
        with pytest.raises(ArgumentError, match="top of a module"):
            fd.register(nameless)


def test_two_functions_of_one_name_are_not_registered() -> None:
    """Workers would run one for the other."""
    for made in (fxforms.grad(rf.double), fxforms.jit(rf.double)):
        with pytest.raises(ArgumentError, match="have one name"):
            fd.register(made)
    first = fd.register(fxforms.grad(unregistered))
    with pytest.raises(ArgumentError, match="have one name"):
        fd.register(unregistered)
    assert fd.register(first) is first
    fd.register(fxforms.vmap(unregistered))  # as where its module is run again


def unregistered(x: torch.Tensor) -> torch.Tensor:
    return x


def test_arguments_that_are_none() -> None:
    fd.init_rpc("alone", rank=0, world_size=1, agent="local")
    try:
        assert fd.rpc_sync("alone", rf.process, None, None) > 0
        for args, kwargs in ((torch.ones(2), None), ("text", None), ((), [1]), (3, None)):
            with pytest.raises(ArgumentError, match=r"args=\(x,\)"):
                fd.rpc_sync("alone", rf.double, args, kwargs)  # type: ignore[arg-type]
        for timeout in ("soon", 0, -3, float("nan")):
            with pytest.raises(ArgumentError, match="timeout="):
                fd.rpc_sync("alone", rf.double, (1,), timeout=timeout)  # type: ignore[arg-type]
        for to in ("nobody", 1, None, [0]):
            with pytest.raises(ArgumentError, match="There is no worker"):
                fd.rpc_sync(to, rf.double, (1,))  # type: ignore[arg-type]
    finally:
        fd.shutdown()


@pytest.mark.parametrize("agent", ["process_group", "grpc"])
def test_a_world_after_a_world(agent: str) -> None:
    """At the same address, as soon as each has left."""
    program = (
        "import sys, torch\n"
        "from fxforms import distributed as fd\n"
        "rank, options = int(sys.argv[1]), {'insecure': True} if sys.argv[2] == 'grpc' else {}\n"
        "for _ in range(3):\n"
        "    fd.init_rpc(f'w{rank}', rank=rank, world_size=2, agent=sys.argv[2], options=options)\n"
        "    assert fd.rpc_sync(1 - rank, torch.ones, (3,)).sum() == 3\n"
        "    fd.shutdown()\n"
    )
    env = {**os.environ, **environment(free_port()), "PYTHONPATH": str(ROOT)}
    workers = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), agent], env=env)
        for rank in range(2)
    ]
    try:
        assert [worker.wait(60) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX, where it is imported
def test_a_forked_process_is_no_worker() -> None:
    """A request of it would be answered to its parent, as another's that has the same number."""
    fd.init_rpc("alone", rank=0, world_size=1, agent="local")
    try:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, _said_by_a_fork().encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert said.startswith("This process was forked from an RPC worker")
        assert fd.rpc_sync("alone", rf.double, (4,)) == 8
    finally:
        fd.shutdown()


def _said_by_a_fork() -> str:
    """What a call says in a process that was forked from a worker."""
    try:
        fd.rpc_sync("alone", rf.double, (4,))
    except ArgumentError as error:
        fd.shutdown()
        return str(error)
    return "nothing"


def test_a_thread_without_work_holds_nothing_of_the_last() -> None:
    """Neither of the work that it was started for, nor of later work."""
    pool = Pool("test", lambda: None)
    try:
        for _ in range(3):
            tensor = torch.ones(3)
            gone = weakref.ref(tensor)
            pool.submit(torch.sum, tensor)
            del tensor
            assert until(lambda gone=gone: gone() is None, 2.0)
    finally:
        pool.close(5.0)
    assert pool.count() == 0
