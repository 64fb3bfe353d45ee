"""Graphs to capture: each case makes its outputs and the inputs that gradients are taken of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Case = tuple[list[torch.Tensor], list[torch.Tensor]]
Make = Callable[[], Case]


def leaf(*shape: int, dtype: torch.dtype = torch.double) -> torch.Tensor:
    """A random leaf."""
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def shared_subexpression() -> Case:
    x = leaf(3)
    y = x.sin()
    return [y * y + y.exp()], [x]


def leaf_used_twice() -> Case:
    x = leaf(3)
    return [x * x.cos() + x], [x]


def in_place() -> Case:
    x = leaf(3)
    y = x * 2
    y.mul_(x).add_(1)
    return [y.sigmoid()], [x]


def views_changed_in_place() -> Case:
    x, v = leaf(3, 3), leaf(3)
    y = x * 2
    y[0] = v.exp()
    y[:, 1].mul_(5)
    y.t()[2].add_(v)
    return [y.sin()], [x, v]


def other_views_changed_in_place() -> Case:
    x, v = leaf(4, 4), leaf(4)
    y = x.t() * 2
    y.diagonal().mul_(v)
    y.reshape(2, 8)[:, ::3].exp_()
    y[1:, ::2].t()[:, 1:2].mul_(3)
    z = torch.zeros(4, 6, dtype=torch.double)[:, ::2]
    z[1] = v[:3] * 2
    z.view(4, 3, 1)[2:, 1:].add_(y[:2, :2, None])
    return [y.sin(), z.exp()], [x, v]


def several_outputs() -> Case:
    x, w = leaf(3), leaf(3)
    h = x * w
    return [h.sin(), h.sum(), x.exp()], [x, w]


def an_output_of_another() -> Case:
    x = leaf(3)
    y = x.exp()
    return [y.sin(), y], [x]


def an_intermediate_input() -> Case:
    x = leaf(3)
    y = x.exp()
    return [y * x], [x, y]


def an_unused_input() -> Case:
    x, unused = leaf(3), leaf(2)
    return [x.exp()], [x, unused]


def unused_parts() -> Case:
    x = leaf(4, 3)
    a, _, c, _ = x.unbind(0)
    return [a * c], [x]


def broadcasting() -> Case:
    x, w, s = leaf(4, 1), leaf(3), leaf()
    return [x * w + s, (x - s).expand(4, 3)], [x, w, s]


def casts() -> Case:
    x, w = leaf(3, dtype=torch.float), leaf(3)
    return [x * w, w.float().exp()], [x, w]


def complex_numbers() -> Case:
    z, x = leaf(3, dtype=torch.cdouble), leaf(3)
    return [z * x + z.conj().exp(), (z * z.conj()).real, torch.view_as_real(z)], [z, x]


def indexing() -> Case:
    x = leaf(5, 3)
    where = torch.tensor([0, 3, 3])
    y = x[where].gather(1, torch.tensor([[0], [2], [1]]))
    return [y, x.index_select(1, where[:2] // 3), torch.where(x > 0, x, x.exp())], [x]


def reductions() -> Case:
    x = leaf(4, 3)
    return [x.prod(1), x.cumprod(0), x.amax(1), x.std(0), x.logsumexp(1), x.sort(0)[0]], [x]


def a_product_with_a_zero() -> Case:
    x = leaf(3)
    with torch.no_grad():
        x[1] = 0
    return [x.prod()], [x]


def linear_algebra() -> Case:
    a, b = leaf(3, 3), leaf(3, 2)
    spd = a @ a.mT + 3 * torch.eye(3, dtype=torch.double)
    return [
        torch.linalg.solve(spd, b),
        torch.linalg.det(a),
        torch.linalg.cholesky(spd),
        a.trace(),
    ], [a, b]


def joined() -> Case:
    x, y = leaf(2, 3), leaf(1, 3)
    z = torch.cat([x, y, x]).flip(0).roll(1, 1)
    return [z.reshape(3, 5), torch.stack([x, 2 * x]).permute(2, 0, 1), F.pad(y, (1, 2))], [x, y]


def _of_module(module: nn.Module, x: torch.Tensor) -> Case:
    module = module.double()
    y = module(x)
    return [y], [x, *module.parameters()]


def perceptron() -> Case:
    layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)]
    return _of_module(nn.Sequential(*layers), leaf(3, 4))


def batch_norm() -> Case:
    return _of_module(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.GELU()), leaf(5, 4))


def dropout() -> Case:
    return _of_module(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.ELU()), leaf(5, 4))


def convolutions() -> Case:
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.GroupNorm(3, 3), nn.SiLU()]
    return _of_module(nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten()), leaf(2, 2, 4, 4))


def recurrent() -> Case:
    cell = nn.GRUCell(2, 3).double()
    x, h = leaf(4, 2), leaf(4, 3)
    return [cell(x, cell(x, h))], [x, h, *cell.parameters()]


def loss_of_embeddings() -> Case:
    table = leaf(5, 3)
    logits = F.embedding(torch.tensor([0, 2, 2, 4]), table)
    return [F.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))], [table]


class Block(nn.Module):
    """A transformer block, its attention written out, so that it has second derivatives."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.after(x))


def transformer_block() -> Case:
    return _of_module(Block(4, 2), leaf(2, 3, 4))


CASES: list[Make] = [
    shared_subexpression,
    leaf_used_twice,
    in_place,
    views_changed_in_place,
    other_views_changed_in_place,
    several_outputs,
    an_output_of_another,
    an_intermediate_input,
    an_unused_input,
    unused_parts,
    broadcasting,
    casts,
    complex_numbers,
    indexing,
    reductions,
    a_product_with_a_zero,
    linear_algebra,
    joined,
    perceptron,
    batch_norm,
    dropout,
    convolutions,
    recurrent,
    loss_of_embeddings,
    transformer_block,
]


def make(case: Make) -> Case:
    """The case, the same at each call."""
    torch.manual_seed(0)
    return case()


def cotangents_for(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Random cotangents."""
    return [torch.randn_like(y) for y in outputs]


def assert_same(found: Any, wanted: Any) -> None:
    """Gradients are equal, and absent in the same places."""
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y)
