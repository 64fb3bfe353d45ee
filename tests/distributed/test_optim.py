"""The distributed optimiser, against the same optimiser in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed import autograd_functions as af

from fxforms import distributed as fd
from fxforms.errors import ArgumentError

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def step(optimizer: fd.DistributedOptimizer, rrefs: list[fd.RRef], x: Tensor) -> None:
    with fd.context() as context_id:
        loss = sum(fd.rpc_sync("w2", af.rref_product, (rref, x)).square().sum() for rref in rrefs)
        fd.backward(context_id, [loss])  # type: ignore[list-item]
        optimizer.step(context_id)


def loss_here(parameters: list[Tensor], x: Tensor) -> Tensor:
    return torch.stack([(p * x.sin()).square().sum() for p in parameters]).sum()


def assert_steps_agree(
    count: int,
    optimizer: fd.DistributedOptimizer,
    rrefs: list[fd.RRef],
    expected: torch.optim.Optimizer,
    here: list[Tensor],
    x: Tensor,
) -> None:
    """As many steps on the workers and here; the parameters are then the same."""
    for _ in range(count):
        step(optimizer, rrefs, x)
        expected.zero_grad()
        loss_here(here, x).backward()
        expected.step()
    for rref, p in zip(rrefs, here):
        torch.testing.assert_close(rref.to_here(), p.detach())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"weight_decay": 0.1}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Rprop, {}),
        (torch.optim.ASGD, {}),
        (torch.optim.NAdam, {"foreach": True}),
    ],
)
def test_parameters_of_two_workers(kind: Any, options: dict[str, Any]) -> None:
    starts, x = [numbers(3), numbers(3)], numbers(3)
    rrefs = [fd.remote(w, af.parameter, (p,)) for w, p in zip(("w1", "w3"), starts)]
    optimizer = fd.DistributedOptimizer(kind, rrefs, lr=0.1, **options)
    here = [p.clone().requires_grad_() for p in starts]
    expected = kind(here, lr=0.1, **options)
    assert_steps_agree(3, optimizer, rrefs, expected, here, x)


def test_parameter_groups() -> None:
    starts, x = [numbers(3) for _ in range(3)], numbers(3)
    rrefs = [fd.remote(w, af.parameter, (p,)) for w, p in zip(("w1", "w3", "w1"), starts)]
    groups = [{"params": rrefs[:2], "lr": 0.5}, {"params": rrefs[2], "momentum": 0.9}]
    optimizer = fd.DistributedOptimizer(torch.optim.SGD, groups, lr=0.1)
    here = [p.clone().requires_grad_() for p in starts]
    expected = torch.optim.SGD(
        [{"params": here[:2], "lr": 0.5}, {"params": here[2], "momentum": 0.9}], lr=0.1
    )
    assert_steps_agree(2, optimizer, rrefs, expected, here, x)


def test_a_step_outside_its_context_is_refused() -> None:
    rref = fd.remote("w1", af.parameter, (numbers(3),))
    optimizer = fd.DistributedOptimizer(torch.optim.SGD, [rref], lr=0.1)
    with fd.context() as context_id:
        fd.backward(context_id, [fd.rpc_sync("w2", af.rref_product, (rref, numbers(3))).sum()])
    with pytest.raises(ArgumentError, match="was released"):
        optimizer.step(context_id)


@pytest.mark.parametrize(
    ("kind", "entries", "said"),
    [
        (torch.optim.LBFGS, None, "closure"),
        ("SGD", None, "a class of torch.optim"),
        (torch.optim.SGD, [3], r"params_rref\[0\] is 3"),
        (torch.optim.SGD, [], "no parameters"),
        (torch.optim.SGD, [{"params": [torch.ones(2)]}], r"params_rref\[0\]\['params'\]\[0\]"),
    ],
)
def test_wrong_arguments(kind: Any, entries: Any, said: str) -> None:
    if entries is None:
        entries = [fd.remote("w1", af.parameter, (numbers(3),))]
    with pytest.raises(ArgumentError, match=said):
        fd.DistributedOptimizer(kind, entries, lr=0.1)
