"""Workers that are slow, stop or die in a backward pass: an error names them, the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed.test_autograd_processes import gradients, leaf, nothing_kept_on
from distributed.worlds import PROCESSES, until, world

from fxforms import distributed as fd
from fxforms import vmap
from fxforms.errors import RpcTimeoutError, WorkerLostError

TIMEOUT = 4.0
SOON = 20.0
Workers = dict[str, subprocess.Popen[bytes]]


@pytest.fixture(params=PROCESSES)
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workers]:
    """Workers that may die; calls have little time."""
    with world(request.param, 4, tmp_path, rpc_timeout=TIMEOUT, silence=8.0) as processes:
        yield processes


def raised_soon(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    start = time.monotonic()
    with pytest.raises(kind, match=text):
        call()
    assert time.monotonic() - start < SOON


def test_workers_that_are_slow_and_die_in_backward(mortal: Workers) -> None:
    x = leaf(3)

    def through(worker: str, seconds: float) -> Callable[[], Any]:
        """Backward of a chain in which ``worker`` stops, called by w2."""
        return lambda: gradients(
            lambda call: call(
                "w2", torch.sin, (call(worker, af.stop_in_backward, (x, seconds)),)
            ).sum(),
            [x],
        )

    through("w1", 0.0)()
    raised_soon(RpcTimeoutError, "'w1'", through("w1", TIMEOUT + 2))
    assert until(lambda: nothing_kept_on("w0", "w2", "w3"))
    os.kill(mortal["w1"].pid, signal.SIGCONT)
    out = fd.remote_function("w1", af.stop_in_backward)(x, -1.0)
    kept = fd.remote_function("w1", torch.sin)(x)
    raised_soon(WorkerLostError, "'w1'", through("w1", -1.0))
    for lost in (out, kept):
        raised_soon(WorkerLostError, "'w1'", lambda lost=lost: lost.sum().backward())
    del out, kept
    assert until(lambda: nothing_kept_on("w0", "w2", "w3"))
    through("w3", 0.0)()
    with fd.context() as context_id:  # killed between forward and backward
        loss = fd.rpc_sync("w2", af.back_and_forth, (["w3"], x)).sum()
        mortal["w3"].kill()
        raised_soon(WorkerLostError, "'w3'", lambda: fd.backward(context_id, [loss]))
    torch.testing.assert_close(
        gradients(lambda call: call("w2", torch.sin, (x,)).sum(), [x])[0], x.detach().cos()
    )
    assert until(lambda: nothing_kept_on("w0", "w2"))


def test_a_worker_that_is_stopped_in_forward_and_in_backward(mortal: Workers) -> None:
    x = leaf(3)
    with fd.context() as context_id:
        loss = fd.rpc_sync("w1", torch.sin, (x,)).sum()
        other = fd.rpc_sync("w2", torch.sin, (x,)).sum()
        os.kill(mortal["w1"].pid, signal.SIGSTOP)
        lost = (RpcTimeoutError, WorkerLostError)
        raised_soon(lost, "'w1'", lambda: fd.backward(context_id, [loss]))  # type: ignore[arg-type]
        raised_soon(lost, "'w1'", lambda: vmap(fd.remote_function("w1", torch.sin))(x))  # type: ignore[arg-type]
        fd.backward(context_id, [other])
        torch.testing.assert_close(fd.get_gradients(context_id)[x], x.detach().cos())
    assert until(lambda: nothing_kept_on("w0", "w2", "w3"))
    mortal["w1"].kill()
