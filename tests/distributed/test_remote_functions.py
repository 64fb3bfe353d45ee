"""Remote functions under every transform, against the same function called here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import autograd_functions as af
from torch.autograd import forward_ad

from fxforms import distributed as fd
from fxforms import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from fxforms._tree import leaves
from fxforms.errors import RemoteError

Tensor = torch.Tensor
Function = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("local_workers", "nothing_recorded")


def remote(fn: Function) -> Function:
    return fd.remote_function("w1", fn)


def by_rpc_sync(fn: Function) -> Function:
    return lambda *args, **kwargs: fd.rpc_sync("w2", fn, args, kwargs)


def by_rpc_async(fn: Function) -> Function:
    return lambda *args, **kwargs: fd.rpc_async("w1", fn, args, kwargs).wait()


def total(f: Function) -> Function:
    return lambda *args: f(*args).sum()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def plain_grad(f: Function, x: Tensor, y: Tensor) -> Any:
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    f(x, y).sum().backward()
    return x.grad, y.grad


def plain_second(f: Function, x: Tensor, y: Tensor) -> Any:
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    first = torch.autograd.grad(f(x, y).sum(), (x, y), create_graph=True)
    return torch.autograd.grad(sum((g * g).sum() for g in first), (x, y))


def plain_dual(f: Function, x: Tensor, y: Tensor) -> Any:
    with forward_ad.dual_level():
        dual: Any = forward_ad
        return tuple(dual.unpack_dual(f(dual.make_dual(x, x.cos()), y)))


def pulled_back_twice(f: Function, x: Tensor, y: Tensor) -> Any:
    out, pull = vjp(f, x, y)
    return pull(out), pull(torch.ones_like(out)), vmap(pull)(torch.stack([out, 2 * out]))


def linearized(f: Function, x: Tensor, y: Tensor) -> Any:
    out, push = linearize(f, x, y)
    return out, push(x, y), vmap(push)(torch.stack([x, y]), torch.stack([y, x]))


BOTH = (0, 1)
COMPOSITIONS: dict[str, Callable[[Function, Tensor, Tensor], Any]] = {
    "call": lambda f, x, y: f(x, y),
    "grad": lambda f, x, y: grad(total(f), BOTH)(x, y),
    "vjp": pulled_back_twice,
    "jvp": lambda f, x, y: jvp(f, (x, y), (y, x)),
    "linearize": linearized,
    "vmap": lambda f, x, y: vmap(f, (0, None))(torch.stack([x, y]), y),
    "vmap_dim": lambda f, x, y: vmap(f, (1, 0))(torch.stack([x, y], 1), torch.stack([y, x])),
    "vmap_vmap": lambda f, x, y: vmap(vmap(f, (0, None)), (None, 0))(
        torch.stack([x, y, x]), torch.stack([x, y])
    ),
    "grad_vmap": lambda f, x, y: grad(lambda x, y: vmap(f, (None, 0))(x, y).sum(), BOTH)(
        x, torch.stack([x, y])
    ),
    "vmap_grad": lambda f, x, y: vmap(grad(total(f), BOTH), (None, 0))(x, torch.stack([x, y, y])),
    "vmap_grad_dim": lambda f, x, y: vmap(grad(lambda a, b: (f(a, b) * b).sum(), BOTH), (1, 0))(
        torch.stack([x, y], 1), torch.stack([y, x])
    ),
    "vmap_vmap_grad": lambda f, x, y: vmap(vmap(grad(total(f), BOTH), (0, None)), (None, 0))(
        torch.stack([x, y, x]), torch.stack([x, y])
    ),
    "jacrev": lambda f, x, y: jacrev(f, BOTH)(x, y),
    "jacfwd": lambda f, x, y: jacfwd(f, BOTH)(x, y),
    "vmap_jacrev": lambda f, x, y: vmap(jacrev(f, BOTH), (0, None))(torch.stack([x, y]), y),
    "hessian": lambda f, x, y: hessian(total(f), BOTH)(x, y),
    "jacrev_jacrev": lambda f, x, y: jacrev(jacrev(total(f), BOTH), BOTH)(x, y),
    "jacrev_jacfwd": lambda f, x, y: jacrev(jacfwd(total(f), BOTH), BOTH)(x, y),
    "jacfwd_jacfwd": lambda f, x, y: jacfwd(jacfwd(total(f), BOTH), BOTH)(x, y),
    "jvp_of_grad": lambda f, x, y: jvp(grad(total(f)), (x, y), (y, x)),
    "grad_of_jvp": lambda f, x, y: grad(lambda x: jvp(f, (x, y), (y, x))[1].sum())(x),
    "vmap_hessian": lambda f, x, y: vmap(hessian(total(f)), (0, None))(torch.stack([x, y]), y),
    "third": lambda f, x, y: grad(grad(grad(lambda a: f(a, y[0]))))(x[0]),
    "plain": plain_grad,
    "plain_second": plain_second,
    "plain_dual": plain_dual,
    "torch_func": lambda f, x, y: torch.func.vmap(torch.func.grad(total(f)), (0, None))(
        torch.stack([x, y]), y
    ),
    "mixed": lambda f, x, y: torch.func.jacfwd(grad(total(f)))(x, y),
}


HOW = [
    *((name, how) for name in COMPOSITIONS for how in (remote, by_rpc_sync)),
    *((name, by_rpc_async) for name in ("call", "vmap_grad", "hessian", "plain", "plain_dual")),
]


@pytest.mark.parametrize(("name", "how"), HOW)
def test_a_composition(name: str, how: Callable[[Function], Function]) -> None:
    x, y = numbers(3), numbers(3)
    expected = leaves(COMPOSITIONS[name](af.smooth, x, y))
    found = leaves(COMPOSITIONS[name](how(af.smooth), x, y))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["call", "grad", "vmap_grad", "jacfwd", "hessian", "plain"])
def test_a_composition_in_a_context(name: str) -> None:
    x, y = numbers(3), numbers(3)
    expected = leaves(COMPOSITIONS[name](af.smooth, x, y))
    with fd.context():
        found = leaves(COMPOSITIONS["call" if name == "plain" else name](remote(af.smooth), x, y))
    if name != "plain":
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_closed_forms() -> None:
    x = numbers(4)
    cube = remote(af.power)
    torch.testing.assert_close(vmap(grad(cube))(x), 3 * x**2)
    torch.testing.assert_close(vmap(grad(grad(cube)))(x), 6 * x)
    torch.testing.assert_close(hessian(lambda x: cube(x).sum())(x), torch.diag(6 * x))
    torch.testing.assert_close(vmap(grad(lambda x: cube(x, exponent=2.0)))(x), 2 * x)


def test_gradients_of_a_context_through_a_transform() -> None:
    """A context records what a transform leaves to plain autograd, on the worker as well."""
    x, y = numbers(3).requires_grad_(), numbers(3)
    expected = torch.autograd.grad(jvp(af.smooth, (x, y), (y, y))[1].sum(), x)[0]
    with fd.context() as context_id:
        loss = jvp(remote(af.smooth), (x, y), (y, y))[1].sum()
        fd.backward(context_id, [loss])
        torch.testing.assert_close(fd.get_gradients(context_id)[x], expected)
    with fd.context() as context_id:
        loss = vmap(remote(af.weighted))(torch.stack([x.detach(), y])).sum()
        fd.backward(context_id, [loss])
        found = fd.rpc_sync("w1", af.weight_gradient, (context_id,))
        torch.testing.assert_close(found, x.detach() + y)


def test_trees_and_plain_data() -> None:
    x, y, shift = numbers(3), numbers(3), numbers(3)
    tree = remote(af.tree)
    expected = af.tree({"x": x, "y": y}, 2.0, shift=shift)
    found = tree({"x": x, "y": y}, 2.0, shift=shift)
    assert found["name"] == "tree"
    torch.testing.assert_close(found["parts"], expected["parts"])
    torch.testing.assert_close(found["moved"], expected["moved"])

    def loss(data: dict[str, Tensor], shift: Tensor) -> Tensor:
        out = tree(data, 2.0, shift=shift)
        return out["moved"].sum() + (out["parts"][0] ** 2).sum()

    g, g_shift = grad(loss, BOTH)({"x": x, "y": y}, shift)
    torch.testing.assert_close(g["x"], torch.full_like(x, 2.0))
    torch.testing.assert_close(g["y"], 2 * y.sin() * y.cos())
    torch.testing.assert_close(g_shift, torch.ones_like(shift))


def test_outputs_without_a_derivative() -> None:
    x = numbers(4)
    f = remote(af.shapes)
    out, index, fixed = f(x)
    assert index == x.argmax()
    torch.testing.assert_close(grad(lambda x: f(x)[0].sum())(x), x.exp())
    torch.testing.assert_close(grad(lambda x: f(x)[2].sum())(x), torch.zeros_like(x))
    leaf = x.clone().requires_grad_()
    out, index, fixed = f(leaf)
    assert [t.requires_grad for t in (out, index, fixed)] == [True, False, False]
    (value, _, _), (pushed, no_tangent, zero) = jvp(f, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(pushed, value)
    assert not zero.any()
    assert not no_tangent.any()


def test_an_argument_that_is_changed_and_one_that_is_not_used() -> None:
    x = numbers(3)
    expected = 2 * (2 * x).cos()
    torch.testing.assert_close(grad(total(remote(af.changed_in_place)))(x), expected)
    torch.testing.assert_close(vmap(grad(remote(af.changed_in_place)))(x), expected)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(remote(af.changed_in_place)(leaf * 1).sum(), leaf)[0], expected
    )
    g, second = total(remote(af.changed_in_place)), -4 * (2 * x).sin()
    torch.testing.assert_close(hessian(g)(x), torch.diag(second))
    torch.testing.assert_close(grad(total(grad(g)))(x), second)
    torch.testing.assert_close(vmap(hessian(g))(x), second)
    torch.testing.assert_close(linearize(remote(af.changed_in_place), x)[1](x), expected * x)
    with fd.context():
        torch.testing.assert_close(grad(g)(x), expected)
    g_x, g_y = vmap(grad(remote(af.first_alone), BOTH))(x, x)
    torch.testing.assert_close(g_x, torch.full_like(x, 2))
    assert not g_y.any()


def test_a_custom_function_on_a_worker() -> None:
    x = numbers(5)
    f = remote(af.swish)
    silu = torch.nn.functional.silu
    for t in (lambda f: vmap(grad(f))(x), lambda f: hessian(total(f))(x), lambda f: jacfwd(f)(x)):
        torch.testing.assert_close(t(f), t(silu))


def test_a_worker_that_calls_another() -> None:
    x = numbers(3)
    f = fd.remote_function("w1", af.relay)
    for t in (
        lambda f: grad(total(f))(x),
        lambda f: vmap(grad(f))(x),
        lambda f: hessian(total(f))(x),
    ):
        expected = t(lambda x: af.smooth(x, x.cos()))
        torch.testing.assert_close(t(lambda x: f("w2", x)), expected)
        torch.testing.assert_close(t(lambda x: f("w0", x)), expected)


def test_an_operator_and_this_worker() -> None:
    x, y = numbers(3), numbers(3)
    torch.testing.assert_close(grad(total(fd.remote_function(0, torch.mul)))(x, y), y)
    torch.testing.assert_close(vmap(fd.remote_function("w2", torch.add), (0, None))(x, 1.0), x + 1)


def test_random_numbers() -> None:
    f = remote(af.noisy)
    x = torch.zeros(1000)
    with pytest.raises(RemoteError, match="random operation"):
        vmap(f)(x)
    same = vmap(f, randomness="same")(x)
    assert same.unique().numel() == 1
    assert vmap(f, randomness="different")(x).unique().numel() > 900
