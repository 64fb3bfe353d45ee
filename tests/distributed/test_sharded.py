"""A batch split over workers, against a loop over it; and the distributed optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af

from fxforms import distributed as fd
from fxforms import grad, hessian, jvp, vmap
from fxforms.distributed.agents.local import LocalAgent
from fxforms.errors import ArgumentError, RemoteError

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")
WORKERS = ["w1", "w2", "w3"]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def looped(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([af.smooth(row, y) for row in x])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_batch_in_order(size: int) -> None:
    x, y = numbers(size, 2), numbers(2)
    f = fd.sharded_vmap(af.smooth, workers=WORKERS, in_dims=(0, None))
    torch.testing.assert_close(f(x, y), looped(x, y))


def test_in_dims_out_dims_and_keywords() -> None:
    x, y, shift = numbers(5, 7), numbers(7, 5), numbers(5)
    f = fd.sharded_vmap(
        af.tree,
        workers=WORKERS,
        in_dims=({"x": 1, "y": 0}, None),
        out_dims={"moved": -1, "parts": [1, 0], "name": None},
    )
    found = f({"x": x, "y": y}, 2.0, shift=shift)
    torch.testing.assert_close(found["moved"], x * 2 + shift[:, None])
    torch.testing.assert_close(found["parts"][0], y.sin().T)
    torch.testing.assert_close(found["parts"][1], torch.arange(3).expand(7, 3))
    assert found["name"] == "tree"


def loss(f: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    return (f(x, y) ** 2).sum()


TRANSFORMS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "grad": lambda f, x, y: grad(lambda x, y: loss(f, x, y), (0, 1))(x, y),
    "jvp": lambda f, x, y: jvp(lambda x, y: f(x, y), (x, y), (x, y)),
    "hessian": lambda f, x, y: hessian(lambda y: loss(f, x, y))(y),
    "vmap": lambda f, x, y: vmap(lambda y: f(x, y))(torch.stack([y, 2 * y])),
    "vmap_grad": lambda f, x, y: vmap(grad(lambda y: loss(f, x, y)))(torch.stack([y, 2 * y])),
    "grad_of_one_piece": lambda f, x, y: grad(lambda a: loss(f, torch.cat([a, x[1:]]), y))(x[:1]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_it_composes(name: str) -> None:
    x, y = numbers(5, 2), numbers(2)
    f = fd.sharded_vmap(af.smooth, workers=WORKERS, in_dims=(0, None))
    torch.testing.assert_close(TRANSFORMS[name](f, x, y), TRANSFORMS[name](looped, x, y))


def test_plain_autograd_and_a_context() -> None:
    f = fd.sharded_vmap(af.smooth, workers=WORKERS, in_dims=(0, None))
    x, y = numbers(5, 2).requires_grad_(), numbers(2).requires_grad_()
    expected = torch.autograd.grad(loss(looped, x, y), [x, y])
    torch.testing.assert_close(torch.autograd.grad(loss(f, x, y), [x, y]), expected)
    with fd.context() as context_id:
        fd.backward(context_id, [loss(f, x, y)])
        found = fd.get_gradients(context_id)
    torch.testing.assert_close((found[x], found[y]), expected)


def test_the_workers_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked before one has answered, in forward and in backward."""
    under_way: list[int] = []
    transmit = LocalAgent._transmit

    def record(agent: LocalAgent, to: Any, message: Any, timeout: float) -> None:
        if agent.info.id == 0 and message.is_request:
            under_way.append(agent.asking())
        transmit(agent, to, message, timeout)

    monkeypatch.setattr(LocalAgent, "_transmit", record)
    x = numbers(6)
    f = fd.sharded_vmap(af.slow_sine, workers=WORKERS)
    torch.testing.assert_close(grad(lambda x: f(x).sum())(x), x.cos())
    first, second = under_way[:3], under_way[3:6]
    assert first == list(range(first[0], first[0] + 3))
    assert len(second) == 3


def test_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [0])
        x = numbers(4)
        torch.testing.assert_close(fd.sharded_vmap(torch.sin, workers=mesh)(x), x.sin())
    finally:
        torch.distributed.destroy_process_group()


def test_wrong_uses() -> None:
    x = numbers(4)
    for given, said in (
        ({"workers": []}, "no workers"),
        ({"workers": "w1"}, "expected a list of"),
        ({"workers": 1}, "expected a list of"),
        ({"workers": WORKERS, "randomness": "same"}, "draw their own"),
        ({"workers": WORKERS, "randomness": "none"}, "randomness must be"),
        ({"workers": WORKERS, "out_dims": None}, "Give it an int"),
        ({"workers": ["nobody"]}, "nobody"),
        ({"workers": WORKERS, "in_dims": 3}, "in_dim must lie"),
    ):
        with pytest.raises(ArgumentError, match=said):
            fd.sharded_vmap(torch.sin, **given)(x)
    with pytest.raises(ArgumentError, match="registered"):
        fd.sharded_vmap(lambda x: x, workers=WORKERS)


# --- the optimiser ---


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimiser_over_workers(kind: type[torch.optim.Optimizer]) -> None:
    """Three steps equal those of one optimiser in one process."""
    start = numbers(3), numbers(3)
    here = [x.clone().requires_grad_() for x in start]
    there = [x.clone().requires_grad_() for x in start]
    x = numbers(3)
    local: Any = kind(here, lr=0.1)
    rrefs = [fd.RRef(there[0]), fd.remote("w1", af.parameter, (start[1],))]
    optimizer = fd.DistributedOptimizer(kind, rrefs, lr=0.1)
    for _ in range(3):
        local.zero_grad()
        (here[1] * (here[0] * x).sin()).sum().backward()
        local.step()
        with fd.context() as context_id:
            second = rrefs[1].to_here()
            out = fd.rpc_sync("w2", torch.mul, (second, (there[0] * x).sin()))
            fd.backward(context_id, [out.sum()])
            optimizer.step(context_id)
    torch.testing.assert_close([there[0], rrefs[1].to_here()], here, rtol=1e-12, atol=0)
    assert there[0].grad is None


def test_an_optimiser_that_cannot_be_made() -> None:
    rref = fd.RRef(numbers(3).requires_grad_())
    with pytest.raises(RemoteError, match="learning rate"):
        fd.DistributedOptimizer(torch.optim.SGD, [rref], lr=-1)
    with pytest.raises(ArgumentError, match="class of torch"):
        fd.DistributedOptimizer(torch.nn.Linear, [rref])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"params_rref\[0\]"):
        fd.DistributedOptimizer(torch.optim.SGD, [numbers(3)])  # type: ignore[list-item]


def test_a_parameter_without_a_gradient_stays() -> None:
    w = numbers(3).requires_grad_()
    before = w.detach().clone()
    optimizer = fd.DistributedOptimizer(torch.optim.SGD, [fd.RRef(w)], lr=1.0)
    with fd.context() as context_id:
        optimizer.step(context_id)
    assert torch.equal(w, before)
