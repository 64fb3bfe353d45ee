"""``with fxforms.compiled_backward()``: what it leaves is what eager autograd leaves."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from capture_functions import WORLD, CombinedCube, Cube, Lazy, NumpyCube, PlainCube, Split
from capture_graphs import (
    CASES,
    Make,
    assert_same,
    cotangents_for,
    leaf,
    make,
    perceptron,
    transformer_block,
)
from compilers import Counter, Parts
from torch import nn

import fxforms


def grads(leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The ``.grad`` of each leaf; all are forgotten."""
    found = [x.grad for x in leaves]
    for x in leaves:
        x.grad = None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_of_leaves(case: Make) -> None:
    outputs, inputs = make(case)
    leaves = [x for x in inputs if x.is_leaf]
    cotangents = cotangents_for(outputs)
    torch.autograd.backward(outputs, cotangents)
    wanted = grads(leaves)
    for _ in range(2):  # captured, then found
        outputs, inputs = make(case)
        leaves = [x for x in inputs if x.is_leaf]
        with fxforms.compiled_backward(Counter()):
            torch.autograd.backward(outputs, cotangents)
        assert_same(grads(leaves), wanted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_of_inputs(case: Make) -> None:
    outputs, inputs = make(case)
    cotangents = cotangents_for(outputs)
    arguments = outputs, inputs, cotangents
    wanted = torch.autograd.grad(*arguments, retain_graph=True, allow_unused=True)
    with fxforms.compiled_backward(Counter()):
        for _ in range(2):
            found = torch.autograd.grad(*arguments, retain_graph=True, allow_unused=True)
            assert_same(found, wanted)


def test_one_structure_is_compiled_once() -> None:
    counter = Counter()
    for _ in range(3):
        (y,), leaves = perceptron()
        with fxforms.compiled_backward(counter):
            y.sum().backward()
        assert all(x.grad is not None for x in leaves)
    assert counter.count == 1


def test_each_shape_is_compiled_once() -> None:
    counter = Counter()
    w = leaf(3)
    counts = []
    for size in (2, 4, 5, 2, 4, 5):
        w.grad = None
        x = torch.randn(size, 3, dtype=torch.double)
        with fxforms.compiled_backward(counter):
            (x * w).sin().sum().backward()
        torch.testing.assert_close(w.grad, (x * (x * w).cos()).sum(0).detach())
        counts.append(counter.count)
    assert counts == [1, 2, 3, 4, 4, 4]  # the second size makes a new program, of any size


def test_a_number_of_the_graph_is_no_constant() -> None:
    w = leaf(3)
    for power in (2.0, 3.0, 4.0):
        w.grad = None
        with fxforms.compiled_backward(Counter()):
            (w**power * power).sum().backward()
        torch.testing.assert_close(w.grad, (power**2 * w ** (power - 1)).detach())


def test_accumulation() -> None:
    x, w = leaf(3), leaf(3)
    x.grad = torch.ones(3, dtype=torch.double)
    kept = x.grad
    with fxforms.compiled_backward(Counter()):
        for _ in range(2):
            (x.sin() * w + w).sum().backward()
    torch.testing.assert_close(x.grad, 1 + 2 * (x.cos() * w).detach())
    torch.testing.assert_close(w.grad, 2 * (x.sin() + 1).detach())
    assert x.grad is kept  # added to in place, as the engine does


def test_gradients_share_no_memory() -> None:
    x, w = leaf(3), leaf(3)
    with fxforms.compiled_backward(Counter()):
        (x.view(3) + w.view(3)).sum().backward()
        x.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))
    torch.testing.assert_close(w.grad, torch.ones_like(w))


def test_retain_graph() -> None:
    x = leaf(3)
    y = x.sin().sum()
    with fxforms.compiled_backward(Counter()):
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()
    torch.testing.assert_close(x.grad, 2 * x.cos().detach())


def test_retain_grad() -> None:
    x = leaf(3)
    y = x.exp()
    y.retain_grad()
    with fxforms.compiled_backward(Counter()):
        y.sin().sum().backward()
    torch.testing.assert_close(y.grad, y.cos().detach())


def test_create_graph() -> None:
    x = leaf(3)
    with fxforms.compiled_backward(Counter()):
        (g,) = torch.autograd.grad(x.exp().sin().sum(), x, create_graph=True)
        g.sum().backward()
    y = x.exp()
    torch.testing.assert_close(g, y * y.cos())
    torch.testing.assert_close(x.grad, (y * y.cos() - y**2 * y.sin()).detach())


@pytest.mark.parametrize("cube", [PlainCube, Cube, CombinedCube, NumpyCube])
def test_functions(cube: Any) -> None:
    x = leaf(3)
    for factor in (1.0, 5.0):
        x.grad = None
        WORLD["factor"] = factor
        with fxforms.compiled_backward(Counter()):
            cube.apply(x.sin()).exp().sum().backward()
        s = x.sin().detach()
        scale = factor if cube is NumpyCube else 1.0
        torch.testing.assert_close(x.grad, scale * (s**3).exp() * 3 * s**2 * x.cos().detach())
    WORLD["factor"] = 1.0


def test_absent_gradients_stay_absent() -> None:
    x, y = leaf(3), leaf(3)
    called: list[torch.Tensor] = []
    y.register_hook(called.append)
    with fxforms.compiled_backward(Counter()):
        Split.apply(x, 2.0, y * 1)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))
    assert y.grad is None
    assert not called


def test_gradients_not_materialized() -> None:
    x = leaf(3)
    with fxforms.compiled_backward(Counter()):
        Lazy.apply(x)[1].sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3))


def test_training() -> None:
    def train(block: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        net = net.append(nn.Linear(8, 1)).double()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(6, 4, dtype=torch.double)).pow(2).mean()
            with block():
                loss.backward()
            optimizer.step()
        return [*net.parameters(), *net.buffers()]

    counter = Counter()
    found = train(lambda: fxforms.compiled_backward(counter))
    assert_same(found, train(contextlib.nullcontext))
    assert counter.count == 1


def test_a_formula_that_depends_on_numbers() -> None:
    x = leaf(4, 3)
    mask = x > 0
    parts = Parts()
    for _ in range(2):
        x.grad = None
        y = 1 * x.exp()
        y[mask] = x.sin()[mask] * 2
        with fxforms.compiled_backward(parts):
            y.cos().sum().backward()
        inner = torch.where(mask, 2 * x.sin(), x.exp()).detach()
        slope = torch.where(mask, 2 * x.cos(), x.exp()).detach()
        torch.testing.assert_close(x.grad, -inner.sin() * slope)
    names = [name for part in parts.operators for name in part]
    assert {"exp.default", "sin.default", "cos.default"} & set(names)
    assert names.count("neg.default") == 1  # each part is compiled once


def test_sparse_gradients() -> None:
    table = leaf(5, 3)
    for _ in range(2):
        table.grad = None
        rows = torch.nn.functional.embedding(torch.tensor([0, 2, 2]), table, sparse=True)
        with fxforms.compiled_backward(Counter()):
            rows.sum().backward()
        assert table.grad.layout == torch.sparse_coo
        wanted = torch.tensor([1, 0, 2, 0, 0.0]).double()
        torch.testing.assert_close(table.grad.to_dense()[:, 0], wanted)


def test_by_inductor() -> None:
    (y,), leaves = make(transformer_block)
    y.sin().sum().backward()
    wanted = grads(leaves)
    (y,), leaves = make(transformer_block)
    with fxforms.compiled_backward():
        y.sin().sum().backward()
    assert_same(grads(leaves), wanted)


@pytest.mark.parametrize("wrapped", ["compiled", "checkpointed"])
def test_regions(wrapped: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (2 * x).sin() * x

    compiled = torch.compile(f, backend="aot_eager")
    regions = {
        "compiled": compiled,
        "checkpointed": lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
    }
    x = leaf(3)
    for _ in range(2):
        x.grad = None
        with fxforms.compiled_backward(Counter()):
            regions[wrapped](x).exp().sum().backward()
        (wanted,) = torch.autograd.grad(f(x).exp().sum(), x)
        torch.testing.assert_close(x.grad, wanted)


def test_reentrant_checkpoints() -> None:
    x = leaf(3)
    with fxforms.compiled_backward(Counter()):
        y = torch.utils.checkpoint.checkpoint(lambda x: x.sin() * x, x, use_reentrant=True)
        y.exp().sum().backward()
    z = x.detach().requires_grad_()
    torch.testing.assert_close(x.grad, torch.autograd.grad((z.sin() * z).exp().sum(), z)[0])
