"""Workers that die or stop: the others get an error that names them, and go on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import remote_functions as rf
from distributed.worlds import PROCESSES, assert_nothing_held, until, world

from fxforms import distributed as fd
from fxforms.errors import RemoteError, RpcTimeoutError, WorkerLostError

SILENCE = 3.0
SOON = 10.0  # seconds; far less than the timeout of a call


@pytest.fixture(params=PROCESSES)
def processes(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    with world(request.param, 4, tmp_path, silence=SILENCE) as found:
        yield found


def is_lost(worker: str) -> bool:
    try:
        fd.rpc_sync(worker, rf.echo, (1,), timeout=0.5)
    except WorkerLostError:
        return True
    except RpcTimeoutError:
        return False
    return False


def raised_soon(kind: type[Exception], worker: str, call: Callable[[], Any]) -> Exception:
    """The error of ``call``, which comes soon and names ``worker``."""
    start = time.monotonic()
    with pytest.raises(kind, match=f"'{worker}'") as caught:
        call()
    assert time.monotonic() - start < SOON
    return caught.value


def test_workers_that_die_and_stop(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    _killed(processes["w1"])
    _stopped(processes["w3"])
    assert fd.rpc_sync("w2", rf.chain, (["w0", "w2"], torch.ones(1))).item() == 4


def _killed(w1: subprocess.Popen[bytes]) -> None:
    kept = fd.RRef(torch.ones(1))
    fd.rpc_sync("w1", rf.keep, (kept,))
    remote = fd.remote("w1", torch.ones, (2,))
    remote.to_here()
    del kept
    waiting = [fd.rpc_async("w1", rf.sleep, (60,)) for _ in range(3)]
    through = fd.rpc_async("w2", rf.sleep_on, ("w1", 60))
    waiting.append(fd.rpc_async("w1", rf.own_late, ("w2", 1.5)))
    time.sleep(0.5)
    w1.kill()
    late = time.monotonic() + 2.0
    for future in waiting:
        raised_soon(WorkerLostError, "w1", future.wait)
    error = raised_soon(WorkerLostError, "w1", through.wait)
    assert isinstance(error, RemoteError)
    assert error.worker == "w2"
    raised_soon(WorkerLostError, "w1", lambda: fd.rpc_sync("w1", rf.echo, (1,)))
    raised_soon(WorkerLostError, "w1", remote.to_here)
    gc.collect()
    assert until(lambda: not fd.debug_info()["owned_rrefs"])  # what the dead worker used
    time.sleep(max(0.0, late - time.monotonic()))
    assert until(lambda: not fd.rpc_sync("w2", rf.held)["owned_rrefs"])  # and would have


def _stopped(w3: subprocess.Popen[bytes]) -> None:
    os.kill(w3.pid, signal.SIGSTOP)
    big = torch.ones(1 << 20)
    for args in ((1,), (big,), (list(big.split(1 << 12)),)):
        call = fd.rpc_async("w3", rf.echo, args, timeout=0.5)
        raised_soon(RpcTimeoutError, "w3", call.wait)
    raised_soon(RpcTimeoutError, "w3", lambda: fd.rpc_sync("w3", rf.echo, (1,), timeout=0.5))
    assert until(lambda: is_lost("w3"), seconds=6 * SILENCE)
    os.kill(w3.pid, signal.SIGCONT)
    w3.wait(30)  # it finds that it is alone, and ends


def test_a_thread_that_leaves_at_once() -> None:
    leave = threading.Event()

    def serve(rank: int) -> None:
        fd.init_rpc(f"w{rank}", rank=rank, world_size=3, agent="local")
        if rank == 1:
            leave.wait(SOON)
        fd.shutdown(graceful=rank != 1)

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    fd.init_rpc("w0", rank=0, world_size=3, agent="local")
    waiting = fd.rpc_async("w1", rf.sleep, (1.0,))
    leave.set()
    raised_soon(WorkerLostError, "w1", waiting.wait)
    raised_soon(WorkerLostError, "w1", lambda: fd.rpc_sync("w1", rf.echo, (1,)))
    assert fd.rpc_sync("w2", rf.echo, (1,)) == 1
    fd.shutdown()
    for thread in threads:
        thread.join(SOON)
    assert_nothing_held()


def test_a_stopped_worker_makes_nothing_that_nobody_wants(tmp_path: Path) -> None:
    """It may learn of the end of an RRef before it makes the value."""
    with world("process_group", 2, tmp_path) as found:
        os.kill(found["w1"].pid, signal.SIGSTOP)
        rrefs = [fd.remote("w1", rf.echo, (torch.ones(1 << 16),), timeout=0.2) for _ in range(8)]
        rrefs += [fd.remote("w1", rf.echo, (1,), timeout=0.2) for _ in range(8)]
        time.sleep(0.5)
        del rrefs
        gc.collect()
        time.sleep(0.3)
        os.kill(found["w1"].pid, signal.SIGCONT)
        assert until(lambda: not fd.rpc_sync("w1", rf.held)["owned_rrefs"])
