"""Small products are written out with the same values; the others stay."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxforms.staging.products import inline_products

mm = torch.ops.aten.mm.default


def remaining(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float64) -> int:
    """How many products remain of one; its values are compared with those of an einsum."""
    x = torch.linspace(-1, 1, rows * inner, dtype=dtype).reshape(rows, inner)
    y = torch.linspace(0, 2, inner * columns, dtype=dtype).reshape(inner, columns)
    graph = inline_products(make_fx(lambda x, y: torch.mm(x, y), tracing_mode="fake")(x, y))
    graph.graph.lint()
    expected = (x[:, :, None] * y).sum(1)
    torch.testing.assert_close(graph(x, y), expected)
    return sum(node.target is mm for node in graph.graph.nodes)


@pytest.mark.parametrize("shape", [(3, 1, 5), (500, 1, 500), (1, 1, 1), (7, 9, 1), (1, 9, 7)])
def test_small_products_are_written_out(shape: tuple[int, int, int]) -> None:
    assert remaining(*shape) == 0


@pytest.mark.parametrize("shape", [(3, 2, 5), (100, 100, 1), (1, 100, 100)])
def test_other_products_stay(shape: tuple[int, int, int]) -> None:
    assert remaining(*shape) == 1


def test_float16_stays() -> None:
    assert remaining(1, 4, 3, torch.float16) == 1


def test_a_symbolic_size_stays() -> None:
    x, y = torch.ones(3, 4), torch.ones(4, 5)
    graph = inline_products(make_fx(lambda x, y: torch.mm(x, y), tracing_mode="symbolic")(x, y))
    assert sum(node.target is mm for node in graph.graph.nodes) == 1


def test_an_infinity_meets_a_zero_as_in_the_library() -> None:
    x, y = torch.tensor([[0.0, 1.0]]), torch.tensor([[torch.inf], [1.0]])
    graph = inline_products(make_fx(lambda x, y: torch.mm(x, y), tracing_mode="fake")(x, y))
    assert graph(x, y).isnan().all()
