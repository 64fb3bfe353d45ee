"""A Function with no level active is an ordinary autograd Function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from custom import (
    PAIRS,
    Attributes,
    Cube,
    Keep,
    Mix,
    Nested,
    Product,
    Triple,
    Unmaterialized,
    plain,
)
from oracle import vec
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

import fxforms


def leaf(*shape: int) -> Tensor:
    return vec(*shape).requires_grad_()


@pytest.mark.parametrize("name", PAIRS)
def test_backward_and_double_backward(name: str) -> None:
    x, y = leaf(3), leaf(3)
    results = []
    for op in (PAIRS[name], plain):
        u, v = op(x, y)
        first = torch.autograd.grad((u.sin() * v).sum(), (x, y), create_graph=True)
        results.append((*first, *torch.autograd.grad((first[0] * first[1]).sum(), (x, y))))
    assert_close(*results)


def test_gradients_accumulate() -> None:
    x = leaf(3)
    Cube.apply(x).sum().backward()
    Cube.apply(x).sum().backward()
    assert_close(x.grad, 6 * x.detach() ** 2)


@pytest.mark.parametrize("function", [Cube, Product, Attributes, Nested, Unmaterialized, Triple])
def test_gradcheck(function: Any) -> None:
    """Also batched, and in forward mode, which ask for the jvp and vmap rules."""
    count = 1 if function in (Cube, Triple) else 2
    inputs = tuple(leaf(2) for _ in range(count))
    call = lambda *args: function.apply(*[x.clone() for x in args])  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, inputs, check_fwd_over_rev=True)


def test_nodes_are_named_after_the_function() -> None:
    x = leaf(3)
    assert Cube.apply(x).grad_fn.name() == "CubeBackward"
    names = []
    fxforms.vjp(lambda y: names.append(Cube.apply(y).grad_fn.name()) or y, x)
    assert names == ["CubeBackward"]
    assert fxforms.vmap(Cube.apply)(x).grad_fn.name() == "CubeBackward"


def test_forward_mode() -> None:
    x, y, tx, ty = vec(3), vec(3), vec(3), vec(3)
    for name, op in PAIRS.items():
        with forward_ad.dual_level():
            duals = forward_ad.make_dual(x, tx), forward_ad.make_dual(y, ty)
            tangents = [forward_ad.unpack_dual(u).tangent for u in op(*duals)]
        expected = [4 * x * y * tx + 2 * x**2 * ty, y.sin() * tx + x * y.cos() * ty]
        assert_close(tangents, expected, msg=name)


def test_no_grad_and_no_leaf_make_no_node() -> None:
    assert Cube.apply(vec(3)).grad_fn is None
    with torch.no_grad():
        assert Cube.apply(leaf(3)).grad_fn is None


def test_a_non_differentiable_output() -> None:
    first, _, positive, last = Mix.apply(leaf(3), 2.0, leaf(3))
    assert first.requires_grad
    assert last.requires_grad
    assert not positive.requires_grad


def test_mark_dirty_keeps_the_tensor() -> None:
    x = leaf(3)
    y = x * 1
    before = y._version
    assert Triple.apply(y) is y
    assert y._version > before
    assert y.grad_fn.name() == "TripleBackward"
    with pytest.raises(RuntimeError, match="leaf Variable"):
        Triple.apply(x)


def test_returned_inputs() -> None:
    x, y = leaf(3), leaf(3)
    u, v = Keep.apply(x, y)
    (u + v).sum().backward()
    assert_close((x.grad, y.grad), (torch.full((3,), 2.0).double(),) * 2)


def test_the_graph_is_freed_by_backward_unless_kept() -> None:
    x = leaf(3)
    y = Cube.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_hooks_on_saved_tensors() -> None:
    x = leaf(3)
    packed = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t.shape)
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = Cube.apply(x)
    y.sum().backward()
    assert packed == [torch.Size([3])]
    assert_close(x.grad, 3 * x.detach() ** 2)


def test_a_saved_tensor_that_was_changed_is_an_error() -> None:
    x = leaf(3)
    y = x * 1
    z = Cube.apply(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_checkpoint_around_a_function() -> None:
    x = leaf(3)
    y = torch.utils.checkpoint.checkpoint(lambda x: Cube.apply(x).sin(), x, use_reentrant=False)
    y.sum().backward()
    d = x.detach()
    assert_close(x.grad, 3 * d**2 * (d**3).cos())


def test_hooks_on_an_intermediate_under_a_transform() -> None:
    def f(x: Tensor) -> Tensor:
        y = Cube.apply(x)
        y.register_hook(lambda g: 2 * g)
        return y.sum()

    x = vec(4, 3)
    assert_close(fxforms.vmap(fxforms.grad(f))(x), 6 * x**2)


def test_a_captured_leaf_gets_its_gradient_through_transforms() -> None:
    """The graph of ordinary autograd goes on below all levels."""
    x, w = vec(4, 3), vec(3)
    programs = [
        (lambda w: fxforms.vmap(lambda x: Product.apply(x, w))(x), x.sum(0)),
        (
            lambda w: fxforms.vmap(fxforms.grad(lambda x: (Product.apply(x, w) ** 2).sum()))(x),
            (4 * x * w).sum(0),
        ),
        (lambda w: fxforms.jvp(lambda x: Product.apply(x, w), (x,), (x,))[1], x.sum(0)),
        (lambda w: fxforms.vjp(lambda x: Product.apply(x, w), x)[1](x)[0], x.sum(0)),
    ]
    for program, expected in programs:
        captured = w.clone().requires_grad_()
        program(captured).sum().backward()
        assert_close(captured.grad, expected)


def test_a_captured_dual_tensor_gets_its_tangent_through_grad() -> None:
    x, w = vec(3), vec(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w, torch.ones_like(w))
        gradient = fxforms.grad(lambda x: (Product.apply(x, dual) ** 2).sum())(x)
        assert_close(forward_ad.unpack_dual(gradient).tangent, 4 * x * w)
