"""A process that is forked while another thread compiles or traces."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch

import fxforms
from fxforms.staging.locks import Lock


def in_child(body: Callable[[], None], seconds: float = 120.0) -> int:
    """The exit code of a forked child that runs ``body``; -1 if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork with several threads is what is tested
        child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException:
            os._exit(1)
        os._exit(0)
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def test_a_child_forked_during_a_compilation() -> None:
    f = fxforms.jit(lambda x: (x.sin() * 2).cos())
    x = torch.ones(7)
    f(x)  # starts the compiler
    f(torch.ones(8)), f(torch.ones(9))

    def body() -> None:
        g = fxforms.jit(lambda x: x.sin() + 1, backend="eager")
        assert torch.equal(g(x), x.sin() + 1)
        torch.testing.assert_close(f(x), (x.sin() * 2).cos())
        torch.testing.assert_close(f(torch.ones(11)), (torch.ones(11).sin() * 2).cos())
        net = torch.nn.Linear(2, 2)
        assert torch.equal(net(torch.ones(2)), torch.ones(2) @ net.weight.t() + net.bias)

    torch.set_num_threads(torch.get_num_threads())
    for _ in range(3):
        assert in_child(body) == 0
        time.sleep(0.2)
    assert torch.equal(fxforms.jit(torch.sin, backend="eager")(x), x.sin())


@pytest.mark.parametrize("steady", [True, False])
def test_a_lock_that_another_thread_holds(steady: bool) -> None:
    lock, held, done = Lock(steady), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(0.5 if steady else None)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def body() -> None:
        with lock:
            pass

    assert in_child(body, 20.0) == 0
    done.set()
    holder.join()
    with lock:
        assert in_child(body, 20.0) == 0
    with lock:
        pass
