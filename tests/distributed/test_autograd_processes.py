"""Autograd and remote functions between real processes."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from distributed.test_autograd import all_to_all, rounds
from distributed.worlds import PROCESSES, until, world
from torch.autograd import forward_ad

from fxforms import distributed as fd
from fxforms import grad, hessian, jacfwd, jvp, vmap
from fxforms.errors import RemoteError

Tensor = torch.Tensor
Workers = dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module", params=PROCESSES)
def workers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    with world(request.param, 4, tmp_path_factory.mktemp("world")) as processes:
        yield processes


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def gradients(loss: Callable[[Any], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    with fd.context() as context_id:
        fd.backward(context_id, [loss(fd.rpc_sync)])
        found = fd.get_gradients(context_id)
    return [found[x] for x in leaves]


def here(to: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return fn(*args)


def nothing_kept_on(*names: str) -> bool:
    gc.collect()
    counts = [fd.rpc_sync(name, rf.held) for name in names]
    return not any(count[key] for count in counts for key in ("contexts", "residuals"))


def test_a_second_derivative_draws_the_same_numbers(workers: Workers) -> None:
    """The second derivative is 4 where a number is kept, and the first as much times x."""
    far, x = fd.remote_function("w1", af.dropped_square), leaf(64)
    (first,) = torch.autograd.grad(far(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert set(second.tolist()) == {0.0, 4.0}
    torch.testing.assert_close(first, second * x)
    found = hessian(lambda q: far(q).sum())(x.detach())
    assert set(found.diagonal().tolist()) == {0.0, 4.0}


def test_100_calls_of_a_chain_and_from_all_to_all(workers: Workers) -> None:
    x = leaf(5)
    xs = [torch.randint(-8, 9, (3,)).double().requires_grad_() for _ in range(4)]
    for loss, leaves in (
        (lambda call: rounds(call, x, 100), [x]),
        (lambda call: all_to_all(call, xs, 100), xs),
    ):
        expected = torch.autograd.grad(loss(here), leaves)
        torch.testing.assert_close(gradients(loss, leaves), list(expected), rtol=0, atol=0)
    assert until(lambda: nothing_kept_on("w0", "w1", "w2", "w3"))


def test_transforms(workers: Workers) -> None:
    x, y = leaf(3).detach(), leaf(3).detach()
    f = fd.remote_function("w1", af.smooth)
    sharded = fd.sharded_vmap(af.smooth, ["w1", "w2", "w3"], in_dims=(0, None))
    batch = torch.stack([x, y, x, y])
    for t in (
        lambda f: grad(lambda x: f(x, y).sum())(x),
        lambda f: jvp(f, (x, y), (y, x)),
        lambda f: vmap(grad(lambda x: f(x, y).sum()))(batch),
        lambda f: hessian(lambda x: f(x, y).sum())(x),
    ):
        torch.testing.assert_close(t(f), t(af.smooth))
    expected = grad(lambda b: (vmap(af.smooth, (0, None))(b, y) ** 2).sum())(batch)
    torch.testing.assert_close(grad(lambda b: (sharded(b, y) ** 2).sum())(batch), expected)
    assert until(lambda: nothing_kept_on("w0", "w1", "w2", "w3"))


def test_a_tangent_that_is_zero(workers: Workers) -> None:
    """It has no data until it is sent."""
    x, y = leaf(3).detach(), leaf(3).detach()
    for f in (torch.mul, af.smooth, torch.sub):
        far = fd.remote_function("w1", f)
        for arg in (0, 1):
            found = jacfwd(jacfwd(far, arg), arg)(x, y)
            torch.testing.assert_close(found, jacfwd(jacfwd(f, arg), arg)(x, y))
    zero = torch._efficientzerotensor((3,), dtype=x.dtype)
    assert not fd.rpc_sync("w1", rf.echo, (zero,)).any()


@pytest.mark.parametrize("block", [nullcontext, torch.no_grad, fd.context])
def test_a_tangent_of_plain_torch(workers: Workers, block: Any) -> None:
    x, tangent = leaf(3).detach(), leaf(3).detach()
    dual: Any = forward_ad
    with block(), forward_ad.dual_level():
        out = dual.unpack_dual(fd.rpc_sync("w1", torch.sin, (dual.make_dual(x, tangent),)))
        torch.testing.assert_close(out.primal, x.sin())
        torch.testing.assert_close(out.tangent, x.cos() * tangent)


def test_an_error_in_backward(workers: Workers) -> None:
    x = leaf(3)
    with pytest.raises(KeyError, match="no gradient today") as caught:
        gradients(
            lambda call: call("w2", torch.sin, (call("w1", af.refuse_backward, (x,)),)).sum(), []
        )
    error: Any = caught.value
    assert isinstance(error, RemoteError)
    assert "in backward" in error.remote_traceback
    with pytest.raises(KeyError, match="no gradient today"):
        fd.rpc_sync("w1", af.refuse_backward, (x,)).sum().backward()
    assert until(lambda: nothing_kept_on("w0", "w1", "w2", "w3"))


def test_an_optimiser(workers: Workers) -> None:
    start, x = leaf(3).detach(), leaf(3).detach()
    rref = fd.remote("w3", af.parameter, (start,))
    optimizer = fd.DistributedOptimizer(torch.optim.SGD, [rref], lr=0.5)
    with fd.context() as context_id:
        fd.backward(context_id, [fd.rpc_sync("w1", af.rref_product, (rref, x)).sum()])
        optimizer.step(context_id)
    torch.testing.assert_close(rref.to_here(), start - 0.5 * x.sin())


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_many_passes_leave_nothing(workers: Workers, count: int) -> None:
    x = leaf(3)
    f = fd.remote_function("w3", torch.sin)
    for _ in range(count):
        gradients(lambda call: call("w1", torch.mul, (call("w2", torch.sin, (x,)), x)).sum(), [x])
        torch.autograd.grad(f(x).sum(), x)
    assert until(lambda: nothing_kept_on("w0", "w1", "w2", "w3"))
    threads = [fd.rpc_sync(f"w{i}", rf.held)["threads"] for i in range(4)]
    assert max(threads) < 25
