"""``torch.autograd.grad(is_grads_batched=True)``, as torch's own Jacobians use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed.test_remote_functions import by_rpc_sync, numbers, remote

from fxforms import distributed as fd
from fxforms.distributed.agents.local import LocalAgent
from fxforms.errors import GradientError

Function = Callable[..., Any]
Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")
how = pytest.mark.parametrize("how", [remote, by_rpc_sync])


def rows(f: Function, inputs: list[Tensor], cotangents: Tensor, **options: Any) -> Any:
    output = f(*inputs)
    return torch.autograd.grad(output, inputs, cotangents, is_grads_batched=True, **options)


def leaves(count: int) -> list[Tensor]:
    return [numbers(3).requires_grad_() for _ in range(count)]


@how
@pytest.mark.parametrize("f", [af.smooth, torch.mul])
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_a_batch_of_cotangents(how: Any, f: Function, batch: int) -> None:
    inputs, cotangents = leaves(2), numbers(batch, 3)
    found = rows(how(f), inputs, cotangents)
    expected = rows(f, inputs, cotangents)
    torch.testing.assert_close(found, expected)


@how
def test_a_custom_function(how: Any) -> None:
    (x,) = leaves(1)
    (found,) = rows(how(af.swish), [x], torch.eye(3, dtype=x.dtype))
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(af.swish, x))


@how
def test_several_outputs_one_of_which_has_a_batch(how: Any) -> None:
    inputs, cotangents = leaves(2), numbers(4, 3)

    def one(*xs: Tensor) -> Tensor:
        first, second = how(af.apart)(*xs)
        return first + second.detach() * second.sum()

    def here(*xs: Tensor) -> Tensor:
        first, second = af.apart(*xs)
        return first + second.detach() * second.sum()

    torch.testing.assert_close(rows(one, inputs, cotangents), rows(here, inputs, cotangents))


def test_it_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, transmit = [], LocalAgent._transmit

    def count(agent: LocalAgent, to: Any, message: Any, timeout: float) -> None:
        if agent.info.id == 0 and b"residuals:pull" in message.payload:
            sent.append(message)
        transmit(agent, to, message, timeout)

    monkeypatch.setattr(LocalAgent, "_transmit", count)
    rows(remote(af.power), leaves(1), numbers(256, 3))
    assert len(sent) == 1


def test_over_several_workers() -> None:
    f = fd.sharded_vmap(af.power, ["w1", "w2"])
    (x,) = leaves(1)
    cotangents = numbers(4, 3)
    torch.testing.assert_close(rows(f, [x], cotangents), rows(af.power, [x], cotangents))


@how
def test_a_second_derivative(how: Any) -> None:
    inputs, cotangents = leaves(2), numbers(4, 3)
    seconds = []
    for f in (how(af.smooth), af.smooth):
        firsts = rows(f, inputs, cotangents, create_graph=True)
        seconds.append(torch.autograd.grad(sum(x.sin().sum() for x in firsts), inputs))
    torch.testing.assert_close(*seconds)


@how
def test_torch_jacobians(how: Any) -> None:
    inputs = tuple(leaves(2))
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    f = how(af.smooth)
    torch.testing.assert_close(
        jacobian(f, inputs, vectorize=True), jacobian(af.smooth, inputs), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(
        hessian(lambda *xs: f(*xs).sum(), inputs, vectorize=True),
        hessian(lambda *xs: af.smooth(*xs).sum(), inputs),
    )


def test_in_a_context() -> None:
    (x,) = leaves(1)
    with fd.context(), pytest.raises(GradientError):
        rows(by_rpc_sync(torch.sin), [x], torch.eye(3, dtype=x.dtype))
