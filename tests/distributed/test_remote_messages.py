"""What a remote function sends and keeps, and how it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from distributed.test_remote_functions import by_rpc_sync, numbers, remote, total
from distributed.worlds import until

import fxforms
from fxforms import distributed as fd
from fxforms import grad, jacfwd, jacrev, jvp, vjp, vmap
from fxforms.distributed.agents.local import LocalAgent
from fxforms.distributed.message import Message, MessageType
from fxforms.errors import ArgumentError, RemoteError, UnsupportedError

Function = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """The requests of calls that worker 0 sends from here on."""
    requests: list[Message] = []
    transmit = LocalAgent._transmit
    calls = {MessageType.SCRIPT_CALL, MessageType.PYTHON_CALL, MessageType.FORWARD_AUTOGRAD_REQ}

    def record(agent: LocalAgent, to: Any, message: Message, timeout: float) -> None:
        released = b"residuals:release" in message.payload  # in the background
        if agent.info.id == 0 and message.type in calls and not released:
            requests.append(message)
        transmit(agent, to, message, timeout)

    monkeypatch.setattr(LocalAgent, "_transmit", record)
    return requests


@pytest.mark.parametrize("how", [remote, by_rpc_sync])
def test_a_batch_is_one_message(how: Callable[[Function], Function], sent: list[Message]) -> None:
    """256 samples, whatever the transforms; a loop takes 256."""
    x = numbers(256, 3)
    f = how(af.counted)
    af.CALLS.clear()
    torch.testing.assert_close(vmap(f)(x), x.sin())
    assert len(sent) == 1
    assert af.CALLS == [(3,)]
    for t, count in (
        (lambda: vmap(lambda x: jvp(f, (x,), (x,)))(x), 1),
        (lambda: vmap(grad(total(f)))(x), 2),
        (lambda: vmap(jacrev(f))(x), 2),
        (lambda: vmap(jacfwd(f))(x), 1),
    ):
        sent.clear()
        t()
        assert len(sent) == count
    sent.clear()
    torch.stack([f(row) for row in x])
    assert len(sent) == 256


def test_the_backward_message_holds_cotangents_alone(sent: list[Message]) -> None:
    x, w = numbers(1000, 4), numbers(4)
    torch.testing.assert_close(grad(remote(af.mean_square))(w, x), grad(af.mean_square)(w, x))
    assert [sum(t.numel() for t in m.tensors) for m in sent] == [4004, 1]


def held() -> int:
    return fd.debug_info()["residuals"]


def test_a_residual_is_released_when_its_node_dies() -> None:
    x = numbers(3).requires_grad_()
    f = remote(torch.exp)
    out = f(x)
    assert held() == 1
    del out
    assert until(lambda: not held())
    out, pull = vjp(f, x.detach())
    for _ in range(3):
        torch.testing.assert_close(pull(torch.ones_like(out))[0], out)
    assert held() == 1
    del out, pull
    assert until(lambda: not held())


def test_a_residual_is_released_when_the_pass_is_over() -> None:
    x = numbers(3).requires_grad_()
    out = remote(torch.exp)(x)
    out.sum().backward(retain_graph=True)
    assert held() == 1
    out.sum().backward()
    assert held() == 0
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_many_passes_leave_no_residual() -> None:
    x = numbers(3).requires_grad_()
    f = remote(torch.sin)
    for i in range(300):
        out = f(x)
        if i % 3:
            torch.autograd.grad(out.sum(), x)
        vmap(grad(f))(x.detach())
    del out
    assert until(lambda: not held())


def test_errors_of_a_remote_function_inside_transforms() -> None:
    f = remote(rf.fail)
    with pytest.raises(ValueError, match="no luck") as caught:
        vmap(lambda x: f("value", "no luck") or x)(numbers(3))
    assert isinstance(caught.value, RemoteError)
    x = numbers(3)
    with pytest.raises(KeyError, match="no gradient today") as in_backward:
        grad(lambda x: remote(af.refuse_backward)(x).sum())(x)
    assert "in backward" in in_backward.value.remote_traceback  # type: ignore[attr-defined]
    with pytest.raises(RemoteError, match="size of tensor"):
        vmap(remote(torch.mul), (0, None))(numbers(4, 3), numbers(2))


def test_what_is_no_remote_function() -> None:
    with pytest.raises(ArgumentError, match="registered"):
        fd.remote_function("w1", lambda x: x)
    with pytest.raises(ArgumentError, match="no worker 'nobody'"):
        fd.remote_function("nobody", torch.sin)(numbers(3))
    with pytest.raises(UnsupportedError, match="stays on a worker"):
        vmap(lambda x: fd.remote("w1", torch.sin, (x,)))(numbers(3))


def test_its_name() -> None:
    assert fd.remote_function("w1", af.smooth).__name__ == "smooth"


def test_checkpoint_around_a_remote_function() -> None:
    x = numbers(3).requires_grad_()
    out: Any = torch.utils.checkpoint.checkpoint(remote(af.swish), x, use_reentrant=False)
    (found,) = torch.autograd.grad(out.sum(), x)
    (expected,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_grad_mode_and_dtype_of_the_caller() -> None:
    with torch.no_grad():
        assert not remote(torch.sin)(numbers(3).requires_grad_()).requires_grad
    assert fxforms.vmap(remote(torch.sin))(torch.ones(3)).dtype is torch.float32
