"""How workers leave together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from distributed import remote_functions as rf
from distributed.worlds import assert_nothing_held

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
    """It does so when all the others have come: worker 0 is still there."""
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
