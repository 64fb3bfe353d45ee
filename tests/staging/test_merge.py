"""Products with one right factor are stacked with the same values, or stay where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fxforms.staging import backends
from fxforms.staging.merge import merge_products

mm = torch.ops.aten.mm.default

SEED = torch.Generator().manual_seed(0)
X = torch.randn(256, 64, generator=SEED)
Y = torch.randn(768, 64, generator=SEED)
W = torch.randn(64, 64, generator=SEED) / 8

Case = Callable[[Tensor, Tensor, Tensor], Any]


def cross(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Two pairs, of which each waits for one of the other: stacking both would be a circle."""
    v = w.sin()
    a, d = x @ w, y @ v
    return -a, -d, -(d.cos() @ w), -(a.cos() @ v)


def chain(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Values and tangents of two layers with the same weights."""
    x, y = x @ w, y @ w
    return -x, -y, -(x.tanh() @ w), -((y * x.tanh().repeat(3, 1)) @ w)


MERGED: dict[str, tuple[Case, int]] = {
    "two": (lambda x, y, w: (-(x @ w), -(y @ w)), 1),
    "three": (lambda x, y, w: (-(x @ w), -(y @ w), -(x.sin() @ w)), 1),
    "transposed twice": (lambda x, y, w: (-(x @ w), -(y @ w.t().t())), 1),
    "both transposed": (lambda x, y, w: (-(x @ w.t()), -(y @ w.t())), 1),
    "used before the other is computed": (lambda x, y, w: ((x @ w).sin(), -(y.cos() @ w)), 1),
    "layers": (chain, 2),
    "a pair across": (cross, 3),
}
APART: dict[str, tuple[Case, int]] = {
    "one after the other": (lambda x, y, w: -(x.sin() @ w @ w), 2),
    "another factor": (lambda x, y, w: (-(x @ w), -(y @ (w + 1))), 2),
    "one transposed": (lambda x, y, w: (-(x @ w), -(y @ w.t())), 2),
    "a left factor transposed": (lambda x, y, w: (-(w.t() @ w), -(y @ w)), 2),
    "small": (lambda x, y, w: (-(x[:10] @ w), -(y[:20] @ w)), 2),
    "large": (lambda x, y, w: (-(y.repeat(2, 1) @ w), -(y @ w)), 2),
    "float64": (lambda x, y, w: (-(x.double() @ w.double()), -(y.double() @ w.double())), 2),
    "returned": (lambda x, y, w: (x @ w, -(y @ w)), 2),
    "returned in another shape": (lambda x, y, w: ((x @ w).view(-1, 2), -(y @ w)), 2),
}


def count(graph: GraphModule) -> int:
    return sum(node.target is mm for node in graph.graph.nodes)


def merged(f: Case) -> GraphModule:
    """The graph of f after the pass; its values are compared with those of float64."""
    table = select_decomp_table()
    traced = make_fx(f, tracing_mode="fake", decomposition_table=table)(X, Y, W)
    graph = merge_products(traced)
    graph.graph.lint()
    expected = f(X.double(), Y.double(), W.double())
    torch.testing.assert_close(graph(X, Y, W), expected, rtol=1e-4, atol=1e-4, check_dtype=False)
    return graph


@pytest.mark.parametrize("name", MERGED)
def test_products_of_one_factor_are_merged(name: str) -> None:
    f, left = MERGED[name]
    assert count(merged(f)) == left


@pytest.mark.parametrize("name", APART)
def test_other_products_stay(name: str) -> None:
    f, left = APART[name]
    assert count(merged(f)) == left


def test_a_random_number_is_drawn_in_its_turn() -> None:
    def f(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        first = x @ w
        return -first, torch.rand_like(first), -(torch.rand_like(y) @ w)

    graph = merge_products(make_fx(f, tracing_mode="fake")(X, Y, W))
    assert count(graph) == 2
    torch.manual_seed(0)
    found = graph(X, Y, W)
    torch.manual_seed(0)
    torch.testing.assert_close(found, f(X, Y, W))


def test_what_reads_written_memory_stays_in_its_place() -> None:
    def f(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        first, z = x @ w, y.clone()
        z.add_(1)
        return -first, -(z.sin() @ w)

    assert count(merged(f)) == 2


def test_a_symbolic_size_stays() -> None:
    graph = make_fx(lambda x, y, w: (-(x @ w), -(y @ w)), tracing_mode="symbolic")(X, Y, W)
    assert count(merge_products(graph)) == 2


@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("f", [chain, cross])
def test_compiled_values(f: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "is_faster", torch.backends.mkldnn.is_available)
    graph = make_fx(f, tracing_mode="fake")(X, Y, W)
    found = tuple(backends.compile_graph(graph)([X, Y, W]))
    expected = f(X.double(), Y.double(), W.double())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, check_dtype=False)
