"""Properties that hold for any function, over random structures, dims and argnums."""

from __future__ import annotations

from typing import Any

import torch
from custom import PAIRS, Cube, Product
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import fxforms

SIZE = 3
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def argument(draw: Any) -> tuple[Tensor, int | None]:
    """A tensor and the dim that holds its batch, None for none."""
    shape = list(draw(shapes))
    dim = draw(st.one_of(st.none(), st.integers(-len(shape) - 1, len(shape))))
    if dim is not None:
        place = dim if dim >= 0 else dim + len(shape) + 1
        shape.insert(place, SIZE)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randn(shape, dtype=torch.float64, generator=generator), dim


def trees_of(leaf: Any) -> Any:
    """Structures of ``leaf``, never empty at the top."""
    inner = st.recursive(
        leaf,
        lambda child: st.one_of(
            st.lists(child, min_size=1, max_size=2),
            st.tuples(child, child),
            st.fixed_dictionaries({"b": child, "a": child}),
        ),
        max_leaves=4,
    )
    return st.lists(inner, min_size=1, max_size=3).map(tuple)


def is_pair(node: Any) -> bool:
    return isinstance(node, tuple) and len(node) == 2 and isinstance(node[0], Tensor)


def split(tree: Any) -> tuple[Any, Any]:
    """The tensors and the dims of a tree of pairs, apart."""
    take = lambda i: pytree.tree_map(lambda p: p[i], tree, is_leaf=is_pair)  # noqa: E731
    return take(0), take(1)


def body(*args: Any) -> Any:
    """Uses every leaf and keeps its shape; also through custom Functions."""
    total = sum(x.sum() for x in pytree.tree_leaves(args))
    return [pytree.tree_map(lambda x: Product.apply(Cube.apply(x), total), args), total]


@given(trees_of(argument()), st.integers(-1, 0), st.sampled_from([None, 1, 2]))
def test_vmap_is_a_loop(pairs: Any, out_dim: int, chunk_size: int | None) -> None:
    args, in_dims = split(pairs)
    flat, spec = pytree.tree_flatten(args)
    dims = pytree.tree_leaves(in_dims, is_leaf=lambda x: x is None)
    if all(dim is None for dim in dims):
        return
    samples = []
    for index in range(SIZE):
        taken = [x if d is None else x.select(d, index) for x, d in zip(flat, dims)]
        samples.append(pytree.tree_flatten(body(*pytree.tree_unflatten(taken, spec))))
    stacked = [torch.stack(parts, out_dim) for parts in zip(*[leaves for leaves, _ in samples])]
    expected = pytree.tree_unflatten(stacked, samples[0][1])
    actual = fxforms.vmap(body, in_dims, out_dim, chunk_size=chunk_size)(*args)
    assert_close(actual, expected)


@given(st.data())
def test_argnums_choose_among_all_gradients(data: Any) -> None:
    count = data.draw(st.integers(1, 4))
    args = [torch.randn(n, dtype=torch.float64) for n in range(count)]
    leaves = [x.clone().requires_grad_() for x in args]
    f = lambda *args: (1 + sum((i + 1) * (x**2).sum() for i, x in enumerate(args))) ** 2  # noqa: E731
    every = torch.autograd.grad(f(*leaves), leaves)
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    signed = tuple(i - count * data.draw(st.integers(0, 1)) for i in chosen)
    assert_close(fxforms.grad(f, signed)(*args), tuple(every[i] for i in chosen))
    assert_close(fxforms.jacfwd(f, signed)(*args), tuple(every[i] for i in chosen))
    assert_close(fxforms.jacrev(f, signed[0])(*args), every[chosen[0]])


@given(st.sampled_from(sorted(PAIRS)), shapes, st.integers(0, 99))
def test_jvp_and_vjp_are_adjoint(name: str, shape: tuple[int, ...], seed: int) -> None:
    """The cotangent times the pushed tangent is the pulled cotangent times the tangent."""
    generator = torch.Generator().manual_seed(seed)
    x, y, tx, ty, u, v = [
        torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(6)
    ]
    _, pushed = fxforms.jvp(PAIRS[name], (x, y), (tx, ty))
    pulled = fxforms.vjp(PAIRS[name], x, y)[1]((u, v))
    _, push = fxforms.linearize(PAIRS[name], x, y)
    left = (pushed[0] * u).sum() + (pushed[1] * v).sum()
    right = (pulled[0] * tx).sum() + (pulled[1] * ty).sum()
    assert_close(left, right)
    assert_close(push(tx, ty), pushed)


@given(st.sampled_from(sorted(PAIRS)), st.floats(-2, 2), st.integers(0, 99))
def test_a_pushforward_is_linear(name: str, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y, a, b = [torch.randn(3, dtype=torch.float64, generator=generator) for _ in range(4)]
    push = lambda t: fxforms.jvp(PAIRS[name], (x, y), (t, t * 0.5))[1]  # noqa: E731
    combined = push(a + scale * b)
    assert_close(combined, tuple(p + scale * q for p, q in zip(push(a), push(b))))
