"""``vmap``: dims, structures, chunks, randomness, in-place changes."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import oracle
import pytest
import torch
from custom import PAIRS, Cube, Product, plain
from oracle import assert_trees_close, vec
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import fxforms
from fxforms import _substrate as substrate

F64 = torch.float64
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Checked:
    """Accepts tensors only."""

    a: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        if not (isinstance(self.a, Tensor) and isinstance(self.b, Tensor)):
            raise TypeError("tensors only")


pytree.register_dataclass(Checked)


@pytest.mark.parametrize("in_dim", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("out_dim", [0, 1, 2, -1, -2, -3])
def test_dims_of_one_tensor(in_dim: int, out_dim: int) -> None:
    x = vec(2, 3, 4)
    f = lambda x: x.cumsum(0) * x.T.sum()  # noqa: E731
    expected = oracle.vmap(f, in_dim, out_dim)(x)
    assert_close(fxforms.vmap(f, in_dim, out_dim)(x), expected)


@pytest.mark.parametrize(
    ("in_dims", "tree"),
    [
        (({"w": 1, "b": None},), lambda a, b: {"w": a.T, "b": b}),
        (([1, None],), lambda a, b: [a.T, b]),
        ((Pair(1, None),), lambda a, b: Pair(a.T, b)),
        (((0, (None,)),), lambda a, b: (a, (b,))),
        (({"w": 0, "b": [None]},), lambda a, b: {"w": a, "b": [b]}),
    ],
    ids=["dict", "list", "named tuple", "nested tuple", "nested list"],
)
def test_in_dims_follow_the_structure(in_dims: Any, tree: Any) -> None:
    a, b = vec(4, 3), vec(3)

    def f(given: Any) -> Tensor:
        first, second = pytree.tree_leaves(given)
        return first * second.sin()

    assert_close(fxforms.vmap(f, in_dims)(tree(a, b)), a * b.sin())


@pytest.mark.parametrize("what", ["in_dims", "out_dims"])
def test_dims_in_a_dict_go_by_key(what: str) -> None:
    a, b = vec(3, 3), vec(3, 3)
    if what == "in_dims":
        f = fxforms.vmap(lambda d: d["w"] - 2 * d["b"], ({"b": 1, "w": 0},))
        assert_close(f({"w": a, "b": b}), a - 2 * b.T)
    else:
        f = fxforms.vmap(lambda a, b: {"w": a, "b": b}, out_dims={"b": 1, "w": 0})
        assert_close(f(a, b), {"w": a, "b": b.T})


def test_a_dataclass_that_checks_its_fields() -> None:
    a, b, s = vec(4, 3), vec(4, 3), vec(3)
    f = lambda given, s: Checked(given.a * s, given.b + s)  # noqa: E731
    result = fxforms.vmap(f, (0, None))(Checked(a, b), s)
    assert_close((result.a, result.b), (a * s, b + s))


def test_structured_outputs() -> None:
    x = vec(4, 3)
    result = fxforms.vmap(lambda x: Pair(x, {"m": x.mean(), "o": (x * 2,)}), out_dims=(-1))(x)
    assert_close(result, Pair(x.T, {"m": x.mean(1), "o": (2 * x.T,)}))
    result = fxforms.vmap(lambda x: Pair(x, x.mean()), out_dims=Pair(1, 0))(x)
    assert_close(result, Pair(x.T, x.mean(1)))
    result = fxforms.vmap(lambda x: (x.mean(),), out_dims=(0,))(x)
    assert_close(result, (x.mean(1),))


def test_return_types_of_torch() -> None:
    x, m = vec(4, 3), vec(4, 3, 3)
    top = fxforms.vmap(lambda x: torch.max(x, 0))(x)
    assert isinstance(top, torch.return_types.max)
    assert_close(tuple(top), tuple(torch.max(x, 1)))
    decomposition = fxforms.vmap(torch.linalg.slogdet)(m)
    assert isinstance(decomposition, torch.return_types.linalg_slogdet)
    assert_close(tuple(decomposition), tuple(torch.linalg.slogdet(m)))


def test_keywords_are_passed_whole() -> None:
    x, w = vec(4, 3), vec(4, 3)
    actual = fxforms.vmap(lambda x, *, w, k: x * w.sum() * k)(x, w=w, k=2)
    assert_close(actual, x * w.sum() * 2)


def test_an_output_with_out_dim_none_passes_through() -> None:
    x, shared = vec(4, 3), vec(2)
    first, second, text = fxforms.vmap(lambda x: (x, shared * 2, "t"), out_dims=(0, None, None))(x)
    assert_close((first, second), (x, 2 * shared))
    assert text == "t"


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("out_dim", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5)], ids=str)
def test_an_output_equal_for_all_samples(shape: Any, out_dim: int, chunk_size: Any) -> None:
    x, constant = vec(3), vec(*shape)
    f = lambda x: constant  # noqa: E731
    actual = fxforms.vmap(f, out_dims=out_dim, chunk_size=chunk_size)(x)
    assert_close(actual, oracle.vmap(f, 0, out_dim)(x))


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("dims", [(0, 0), (1, -1), (-1, 1)])
def test_chunks(chunk_size: int, dims: tuple[int, int]) -> None:
    x, y = vec(5, 5), vec(5)
    seen = []

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(1)
        return x * y, Cube.apply(x)

    in_dim, out_dim = dims
    actual = fxforms.vmap(f, (in_dim, None), out_dim, chunk_size=chunk_size)(x, y)
    assert len(seen) == -(-5 // chunk_size)
    expected = oracle.vmap(lambda x, y: (x * y, x**3), (in_dim, None), out_dim)(x, y)
    assert_trees_close(actual, expected)


# Not (0,): torch's own batch rules take the first of no samples for a number.
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty_batches_and_samples(shape: tuple[int, ...]) -> None:
    x = vec(*shape)
    assert_close(fxforms.vmap(Cube.apply)(x), x**3)
    assert_close(fxforms.vmap(fxforms.grad(lambda x: Cube.apply(x).sum()))(x), 3 * x**2)
    assert_close(fxforms.grad(lambda x: fxforms.vmap(Cube.apply)(x).sum())(x), 3 * x**2)
    assert_close(fxforms.jvp(fxforms.vmap(Cube.apply), (x,), (x,))[1], 3 * x**3)


def test_randomness() -> None:
    x = torch.zeros(4, 3)
    noise = lambda x: x + torch.randn(3)  # noqa: E731
    torch.manual_seed(1)
    same = fxforms.vmap(noise, randomness="same")(x)
    torch.manual_seed(1)
    assert_close(same, torch.randn(3).expand(4, 3))
    different = fxforms.vmap(noise, randomness="different")(x)
    assert different.unique().numel() == 12
    for chunk_size in (1, 3):
        torch.manual_seed(1)
        chunked = fxforms.vmap(noise, randomness="same", chunk_size=chunk_size)(x)
        assert_close(chunked, same)
        different = fxforms.vmap(noise, randomness="different", chunk_size=chunk_size)(x)
        assert different.unique().numel() == 12


def test_randomness_reaches_a_custom_rule() -> None:
    told = []

    class Told(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x + 1

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: fxforms.VmapInfo, in_dims: Any, x: Tensor) -> Any:
            told.append((info, in_dims))
            return x + 1, in_dims[0]

    x = vec(4, 2, 3)
    inner = fxforms.vmap(Told.apply, 1, randomness="same")
    assert_close(fxforms.vmap(inner, randomness="different")(x), (x + 1).movedim(2, 1))
    assert told == [((3, "same"), (1,))]


def test_in_place_changes_of_batched_tensors() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        z += y
        z[0] = x.sum()
        return z

    x, y = vec(4, 3), vec(4, 3)
    expected = y.clone()
    expected[:, 0] = x.sum(1)
    assert_close(fxforms.vmap(f)(x, y), expected)
    before = x.clone()
    fxforms.vmap(lambda x: x.mul_(2))(x)
    assert_close(x, 2 * before)


def test_the_graph_outside_is_kept() -> None:
    x = vec(4, 3).requires_grad_()
    fxforms.vmap(lambda x: Product.apply(x, x.sum()))(x).sum().backward()
    assert_close(x.grad, 2 * x.detach().sum(1, keepdim=True).expand(4, 3))


@pytest.mark.parametrize("name", PAIRS)
def test_rules_where_nothing_is_batched(name: str) -> None:
    """The level is passed by: its result is not batched either."""
    x, y = vec(2), vec(2)
    seen = []

    def f(sample: Tensor) -> Tensor:
        outputs = PAIRS[name](x.clone(), y)
        seen.extend(substrate.is_batched(u) for u in outputs)
        return sample

    fxforms.vmap(f)(vec(3))
    assert seen == [False, False]
    first, second = fxforms.vmap(lambda s: PAIRS[name](x.clone(), y), out_dims=0)(vec(3))
    assert_close((first, second), tuple(u.expand(3, 2) for u in plain(x, y)))
