"""A diagonal of a product becomes a sum with the same values; where more is used it stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fxforms.staging.diagonals import shorten_diagonals

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
Y = torch.linspace(0, 2, 12, dtype=torch.float64).reshape(4, 3)
# Two blocks of three rows.
ROWS = torch.linspace(-2, 1, 24, dtype=torch.float64).reshape(6, 4)

Case = Callable[[Tensor, Tensor, Tensor], Any]
TAKEN: dict[str, Case] = {
    "plain": lambda x, y, rows: torch.diagonal(x @ y),
    "trace": lambda x, y, rows: torch.diagonal(x @ y).sum(),
    "dims exchanged": lambda x, y, rows: torch.diagonal(x @ y, 0, 1, 0),
    "negative dims": lambda x, y, rows: torch.diagonal(x @ y, dim1=-2, dim2=-1),
    "blocks": lambda x, y, rows: torch.diagonal((rows @ y).view(2, 3, 3), 0, 1, 2),
    "by way of another shape": lambda x, y, rows: torch.diagonal(
        (rows @ y).view(2, 3, 1, 3).squeeze(2), 0, 1, 2
    ),
    "a split into one part": lambda x, y, rows: torch.diagonal((x @ y).split([3])[0]),
    "transposed factors": lambda x, y, rows: torch.diagonal(y.t() @ x.t()),
}
OTHER: dict[str, Case] = {
    "an offset": lambda x, y, rows: torch.diagonal(x @ y, 1),
    "more is used": lambda x, y, rows: (lambda z: (torch.diagonal(z), z))(x @ y),
    "another shape is used": lambda x, y, rows: (lambda z: (torch.diagonal(z), z.view(9)))(x @ y),
    "not square": lambda x, y, rows: torch.diagonal(rows @ y),
    "across the blocks": lambda x, y, rows: torch.diagonal((rows @ y).view(2, 3, 3), 0, 0, 2),
    "the columns in two": lambda x, y, rows: torch.diagonal((rows @ y).view(3, 2, 3), 0, 0, 1),
    "columns and rows mixed": lambda x, y, rows: torch.diagonal((y @ x).view(2, 4, 2), 0, 0, 2),
    "bits of another dtype": lambda x, y, rows: torch.diagonal((x @ y).view(torch.int64)),
    "integers": lambda x, y, rows: torch.diagonal(x.long() @ y.long()),
    "no product": lambda x, y, rows: torch.diagonal(x[:, :3] + y[:3]),
    "a part": lambda x, y, rows: torch.diagonal((rows @ y).split([3, 3])[1]),
}


def products_left(f: Case) -> int:
    """How many products remain; the values are compared with those of the function as written."""
    graph = shorten_diagonals(make_fx(f, tracing_mode="fake")(X, Y, ROWS))
    graph.graph.lint()
    torch.testing.assert_close(graph(X, Y, ROWS), f(X, Y, ROWS))
    return sum(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes)


@pytest.mark.parametrize("f", TAKEN.values(), ids=TAKEN)
def test_a_diagonal_needs_no_product(f: Case) -> None:
    assert products_left(f) == 0


@pytest.mark.parametrize("name", OTHER)
def test_other_products_stay(name: str) -> None:
    assert products_left(OTHER[name]) == (name != "no product")


def test_a_symbolic_size_stays() -> None:
    graph = make_fx(lambda x, y: torch.diagonal(x @ y), tracing_mode="symbolic")(X, Y)
    shorten_diagonals(graph)
    assert sum(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes) == 1


def test_the_sum_is_the_closed_form() -> None:
    graph = shorten_diagonals(make_fx(TAKEN["plain"], tracing_mode="fake")(X, Y, ROWS))
    expected = torch.stack([sum(X[i, k] * Y[k, i] for k in range(4)) for i in range(3)])  # type: ignore[misc]
    torch.testing.assert_close(graph(X, Y, ROWS), expected)
