"""How workers leave together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from distributed import remote_functions as rf
from distributed.worlds import ROOT, assert_nothing_held, environment, free_port

from fxforms import distributed as fd
from fxforms.distributed import leave
from fxforms.errors import RpcTimeoutError


def test_a_shutdown_that_does_not_wait_for_ever() -> None:
    go = threading.Event()

    def late() -> None:
        fd.init_rpc("w1", rank=1, world_size=2, agent="local")
        go.wait(10)
        fd.shutdown()

    other = threading.Thread(target=late)
    other.start()
    fd.init_rpc("w0", rank=0, world_size=2, agent="local")
    with pytest.raises(RpcTimeoutError, match="not every worker"):
        fd.shutdown(timeout=0.2)
    go.set()
    other.join(10)
    assert_nothing_held()


def test_a_worker_that_is_told_to_ask_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so when all the others have come, and worker 0 is still there."""
    ask = leave.ask_command

    def ask_slowly(agent: Any, *args: Any) -> Any:
        answer: Any = ask(agent, *args)
        if agent.info.id == 1 and not answer.value:
            time.sleep(0.3)
        return answer

    monkeypatch.setattr(leave, "ask_command", ask_slowly)
    monkeypatch.setattr(leave, "_POLL", 0.001)
    other = threading.Thread(
        target=lambda: fd.init_rpc("w1", rank=1, world_size=2, agent="local") or fd.shutdown()
    )
    other.start()
    fd.init_rpc("w0", rank=0, world_size=2, agent="local")
    fd.rpc_async("w1", rf.sleep, (0.5,))  # worker 0 comes to the last point after it
    fd.shutdown()
    other.join(10)
    assert caplog.text == ""
    assert_nothing_held()


@pytest.mark.parametrize("agent", ["process_group", "grpc"])
def test_a_worker_that_is_slow_to_read_its_pipe(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the last answer before it sees that worker 0 leaves."""
    program = (
        "import sys, time\n"
        "from fxforms import distributed as fd\n"
        "from fxforms.distributed.agents.pipe_link import PipeLink\n"
        "options = {'insecure': True} if sys.argv[1] == 'grpc' else {}\n"
        "fd.init_rpc('w1', rank=1, world_size=2, agent=sys.argv[1], options=options)\n"
        "read = PipeLink._read\n"
        "PipeLink._read = lambda self: (read(self), time.sleep(0.1))\n"
        "fd.shutdown()\n"
    )
    for name, value in environment(free_port()).items():
        monkeypatch.setenv(name, value)
    options = {"insecure": True} if agent == "grpc" else {}
    other = subprocess.Popen(
        [sys.executable, "-c", program, agent],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    try:
        fd.init_rpc("w0", rank=0, world_size=2, agent=agent, options=options)
        fd.shutdown()
        _, said = other.communicate(timeout=60)
        assert (other.returncode, said) == (0, b"")
    finally:
        other.kill()
        other.wait(10)
    assert_nothing_held()
