"""What remote functions and calls take under transforms: dataclasses, tangents, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from distributed import remote_functions as rf
from torch.autograd import forward_ad

import fxforms
from fxforms import distributed as fd
from fxforms import grad, hessian, jit, jvp, vmap
from fxforms.errors import GradientError, RemoteError, TraceError, UnsupportedError

Tensor = torch.Tensor
Function = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def by_rpc_sync(fn: Function) -> Function:
    return lambda *args: fd.rpc_sync("w2", fn, args)


WAYS = [lambda fn: fd.remote_function("w1", fn), by_rpc_sync]


@fd.register
def product_of_pair(pair: rf.Pair) -> Tensor:
    result: Tensor = pair.left.sin() * pair.right
    return result


@fd.register
def pair_of(x: Tensor) -> rf.Pair:
    return rf.Pair(x.sin(), {"inner": rf.Pair(x.cos(), None)})


@pytest.mark.parametrize("far", WAYS)
@pytest.mark.parametrize(
    "transformed",
    [
        lambda f, x: f(x),
        lambda f, x: grad(lambda x: f(x).sum())(x),
        lambda f, x: hessian(lambda x: f(x).sum())(x),
        lambda f, x: jvp(f, (x,), (x.cos(),)),
        lambda f, x: vmap(f)(x),
        lambda f, x: vmap(grad(f))(x),
        lambda f, x: torch.autograd.functional.jacobian(f, x),
    ],
)
def test_tensors_in_dataclasses(far: Function, transformed: Function) -> None:
    def into(f: Function) -> Function:
        return lambda x: f(rf.Pair(x, x.exp()))

    def out_of(f: Function) -> Function:
        def both(x: Tensor) -> Any:
            pair = f(x)
            return pair.left * pair.right["inner"].left

        return both

    x = numbers(3)
    for around, fn in ((into, product_of_pair), (out_of, pair_of)):
        expected = transformed(around(fn), x)
        torch.testing.assert_close(transformed(around(far(fn)), x), expected)


def test_a_dataclass_from_several_workers() -> None:
    xs = numbers(5, 3)
    found = fd.sharded_vmap(pair_of, ["w1", "w2"])(xs)
    torch.testing.assert_close(found.left, xs.sin())
    torch.testing.assert_close(found.right["inner"].left, xs.cos())
    pairs = rf.Pair(xs, xs.exp())
    found = fd.sharded_vmap(product_of_pair, ["w1", "w2"])(pairs)
    torch.testing.assert_close(found, xs.sin() * xs.exp())


@pytest.mark.parametrize("block", [nullcontext, torch.no_grad, fd.context])
@pytest.mark.parametrize("way", [fd.rpc_sync, lambda *call: fd.rpc_async(*call).wait()])
def test_a_tangent_of_plain_torch_is_followed(block: Any, way: Function) -> None:
    x, tangent = numbers(3), numbers(3)
    dual: Any = forward_ad
    with block(), forward_ad.dual_level():
        moved = dual.make_dual(x, tangent)
        for fn, args in ((torch.sin, (moved,)), (product_of_pair, (rf.Pair(moved, 1.0),))):
            out = dual.unpack_dual(way("w1", fn, args))
            torch.testing.assert_close(out.primal, x.sin())
            torch.testing.assert_close(out.tangent, x.cos() * tangent)


def test_a_tangent_that_would_stay_on_a_worker_is_refused() -> None:
    with forward_ad.dual_level():
        dual: Any = forward_ad
        moved = dual.make_dual(numbers(3), numbers(3))
        with pytest.raises(UnsupportedError, match=r"remote\(\) was called"):
            fd.remote("w1", torch.sin, (moved,))


def test_an_error_inside_a_transform_is_that_of_the_future() -> None:
    def caught(x: Tensor) -> Tensor:
        future = fd.rpc_async("w1", rf.raise_on, (x,))
        with pytest.raises(RemoteError, match="never"):
            future.wait()
        return x.sum()

    assert torch.equal(grad(caught)(torch.zeros(2)), torch.ones(2))


@fd.register
def dropped(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x**3, 0.5, training=True)


@pytest.mark.parametrize(
    "far",
    [*WAYS, lambda fn: fd.remote_function("w1", torch.dropout)],
    ids=["rf", "rpc", "operator"],
)
def test_a_second_derivative_draws_the_same_numbers(far: Function) -> None:
    """What was dropped from the value is dropped from the derivatives, and nothing else is."""
    x = torch.rand(64, dtype=torch.float64) + 1
    cube = far(dropped)

    def f(x: Tensor) -> Tensor:
        out: Tensor = cube(x**3, 0.5, True) if cube.__name__ == "dropout" else cube(x)
        return out

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        out = f(x)
        return out.sum(), out

    def slope(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        first, out = grad(total, has_aux=True)(x)
        return first.sum(), (first, out)

    second, (first, out) = grad(slope, has_aux=True)(x)
    kept = (out != 0).double()
    torch.testing.assert_close(out, 2 * kept * x**3)
    torch.testing.assert_close(first, 6 * kept * x**2)
    torch.testing.assert_close(second, 12 * kept * x)
    leaf = x.clone().requires_grad_()
    plain = f(leaf)
    (slopes,) = torch.autograd.grad(plain.sum(), leaf, create_graph=True)
    torch.testing.assert_close(slopes, 6 * (plain != 0) * leaf**2)


def test_a_second_run_leaves_the_generator_alone() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    out = fd.remote_function("w1", dropped)(x).sum()
    before = torch.get_rng_state()
    torch.autograd.grad(out, x, create_graph=True)
    assert torch.equal(torch.get_rng_state(), before)


DRAWS = [0]


@fd.register
def drawing_more_each_time(x: Tensor) -> Tensor:
    DRAWS[0] += 1
    return x**3 * torch.rand(DRAWS[0]).sum()


def test_other_numbers_the_second_time_are_refused() -> None:
    with pytest.raises(GradientError, match="draws other random numbers"):
        hessian(fd.remote_function("w1", drawing_more_each_time))(torch.tensor(1.0))


@pytest.mark.parametrize("far", WAYS)
@pytest.mark.parametrize(
    "transformed",
    [
        lambda f, x: jit(f)(x),
        lambda f, x: jit(grad(f))(x),
        lambda f, x: grad(jit(f))(x),
        fxforms.eval_shape,
    ],
)
def test_a_trace_refuses_a_call(far: Function, transformed: Function) -> None:
    f = far(torch.exp)
    with pytest.raises(TraceError, match="pure_callback"):
        transformed(f, torch.ones(()))


def test_a_call_of_constants_is_refused_inside_jit() -> None:
    with pytest.raises(TraceError, match="made once"):
        jit(lambda x: x + fd.rpc_sync("w1", torch.ones, (3,)))(torch.ones(3))


def test_a_callback_calls_a_worker_inside_jit() -> None:
    sine = fd.remote_function("w1", torch.sin)
    x = numbers(3)
    torch.testing.assert_close(jit(lambda x: 2 * fxforms.pure_callback(sine, x, x))(x), 2 * x.sin())


@pytest.mark.parametrize("how", WAYS)
def test_a_tensor_that_is_there_twice_is_one_tensor(how: Function) -> None:
    """As in a call here: a change in place is seen in both places."""

    def by(f: Function) -> Function:
        def run(x: Tensor) -> Tensor:
            h = x * 1
            first, second, _ = f(h, {"y": h})
            assert first is second
            first.mul_(3)
            return second + first

        return run

    x = numbers(3)
    far, here = by(how(af.one_object)), by(af.one_object)
    torch.testing.assert_close(far(x), here(x))
    found, expected = (grad(lambda x, f=f: f(x).sum()) for f in (far, here))
    torch.testing.assert_close(found(x), expected(x))
    torch.testing.assert_close(vmap(found)(x[None]), vmap(expected)(x[None]))
    torch.testing.assert_close(jvp(far, (x,), (x.cos(),)), jvp(here, (x,), (x.cos(),)))
    leaf = x.clone().requires_grad_()
    found = torch.autograd.grad(far(leaf).sum(), leaf)
    torch.testing.assert_close(found, torch.autograd.grad(here(leaf).sum(), leaf))
    assert how(torch.mul)(leaf, leaf).sum().backward() is None
    torch.testing.assert_close(leaf.grad, 2 * x)


def test_a_tensor_that_is_there_twice_in_a_batch_over_workers() -> None:
    f = fd.sharded_vmap(af.smooth, ["w1", "w2"], in_dims=(0, 0))
    g = fd.sharded_vmap(af.smooth, ["w1", "w2"], in_dims=(0, 1))
    h = fd.sharded_vmap(af.tree_product, ["w1", "w2"], in_dims=(0, None))
    x, y = numbers(3, 3), numbers(3)
    torch.testing.assert_close(f(x, x), af.smooth(x, x))
    torch.testing.assert_close(g(x, x), af.smooth(x, x.T))
    torch.testing.assert_close(h(x, [y, y, x]), (x + 2 * y).matmul(x))


@pytest.mark.parametrize("how", WAYS)
def test_a_sparse_gradient(how: Function) -> None:
    far, rows = how(af.looked_up), torch.tensor([1, 3, 1])
    table = numbers(5, 2).requires_grad_()
    expected = torch.zeros_like(table).index_add(0, rows, table.detach()[rows].cos())
    (found,) = torch.autograd.grad(far(table, rows).sum(), table)
    torch.testing.assert_close(found, expected)
    (found,) = torch.autograd.grad(far(table, rows).sum(), table, create_graph=True)
    torch.testing.assert_close(found, expected)
    found = grad(lambda t: far(t, rows).sum())(table.detach())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("how", [*WAYS, lambda fn: lambda x: fd.rpc_async("w1", fn, (x,)).wait()])
def test_a_batch_of_dual_tensors(how: Function) -> None:
    """A vmap inside a jvp, of fxforms or of plain torch."""
    x, t = numbers(4, 3), numbers(4, 3)
    far = how(torch.sin)
    torch.testing.assert_close(jvp(vmap(far), (x,), (t,)), (x.sin(), x.cos() * t))
    torch.testing.assert_close(
        jvp(vmap(lambda y: far(y) * far(x[0])), (x,), (t,))[1],
        x.cos() * t * x[0].sin(),
    )
    dual: Any = forward_ad
    with dual.dual_level():
        out = dual.unpack_dual(vmap(far)(dual.make_dual(x, t)))
    torch.testing.assert_close(out.tangent, x.cos() * t)
    with pytest.raises(UnsupportedError, match="remote"):
        jvp(vmap(lambda y: fd.remote("w1", torch.sin, (y,)).to_here()), (x,), (t,))
