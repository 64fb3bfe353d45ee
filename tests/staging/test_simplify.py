"""The rewrites of a traced graph drop what they should, and nothing else; values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import fxforms
from fxforms.staging.identity import fold_identities
from fxforms.staging.simplify import drop_zero_tangents

aten = torch.ops.aten

X = torch.linspace(-1.0, 1.0, 9).reshape(3, 3)
W = torch.linspace(0.5, 2.0, 9).reshape(3, 3)
ZERO = torch.zeros(3, 3)


def traced(f: Callable[..., Any], *args: Tensor) -> GraphModule:
    return make_fx(f, tracing_mode="fake")(*args)


def count(graph: GraphModule, *packets: Any) -> int:
    return sum(
        getattr(node.target, "overloadpacket", None) in packets for node in graph.graph.nodes
    )


def with_zero(f: Callable[..., Any]) -> GraphModule:
    """f(z, x, w) as traced, with what is recorded for a missing tangent in the place of z."""
    graph = traced(f, ZERO, X, W)
    z = next(iter(graph.graph.nodes))
    with graph.graph.inserting_after(list(graph.graph.nodes)[2]):
        missing = graph.graph.call_function(aten._efficientzerotensor.default, ([3, 3],))
    with graph.graph.inserting_after(missing):
        zero = graph.graph.call_function(aten.zeros_like.default, (missing,))
    zero.meta = dict(z.meta)
    z.replace_all_uses_with(zero)
    graph.graph.erase_node(z)
    graph.recompile()
    return graph


SUMS: dict[str, Callable[..., Any]] = {
    "add": lambda z, x, w: x + z,
    "add, zero first": lambda z, x, w: z + x,
    "add, scaled zero": lambda z, x, w: torch.add(x, z, alpha=3),
    "add, scaled other": lambda z, x, w: torch.add(z, x, alpha=3),
    "add, broadcast": lambda z, x, w: z + x[0],
    "sub": lambda z, x, w: x - z,
    "sub, zero first": lambda z, x, w: z - x,
    "sub, broadcast": lambda z, x, w: z - x[:, :1],
    "sum of zeros": lambda z, x, w: z + z * x,
    "addmm, zero term": lambda z, x, w: torch.addmm(z, x, w),
    "addmm, zero factor": lambda z, x, w: torch.addmm(x, z, w),
    "addmm, other zero factor": lambda z, x, w: torch.addmm(x[0], w, z),
    "addmm, scaled": lambda z, x, w: torch.addmm(x, z, w, beta=2, alpha=3),
    "addmm, only zeros": lambda z, x, w: torch.addmm(z, x, z),
    "addmv": lambda z, x, w: torch.addmv(x[0], z, w[0]),
    "baddbmm": lambda z, x, w: torch.baddbmm(z[None], x[None], w[None]),
    "where": lambda z, x, w: torch.where(x > 0, z, z * w),
    "where, one branch": lambda z, x, w: torch.where(x > 0, z, w),
    "cat": lambda z, x, w: torch.cat([z, z * x]),
    "cat with another": lambda z, x, w: torch.cat([z, x]),
    "stack": lambda z, x, w: torch.stack([z, z]),
    "matrix product": lambda z, x, w: x @ (z @ w),
    "vector product": lambda z, x, w: z @ x[0] + w[0],
    "quotient": lambda z, x, w: z / w + x,
    "divided by it": lambda z, x, w: w / (z + 1),
    "not linear": lambda z, x, w: z.cos() * x,
    "shapes": lambda z, x, w: z.t().reshape(9).unsqueeze(0).sum(1) + x[0, :1],
    "dtype": lambda z, x, w: z.double() + x,
    "rule of tanh": lambda z, x, w: torch.ops.aten.tanh_backward(z, x) + w,
    "split": lambda z, x, w: z.split([1, 2])[1] + x[1:],
    "in place": lambda z, x, w: z.clone().add_(x) + w,
    "in place on the sum": lambda z, x, w: (x + z).mul_(w) + x,
    "returned": lambda z, x, w: (z, z * x),
}


@pytest.mark.parametrize("f", SUMS.values(), ids=SUMS)
def test_values_are_those_with_a_zero(f: Callable[..., Any]) -> None:
    graph = drop_zero_tangents(with_zero(f))
    graph.graph.lint()
    expected = f(ZERO, X, W)
    torch.testing.assert_close(graph(X, W), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name",
    ["add", "add, broadcast", "sub", "addmm, zero factor", "matrix product", "rule of tanh", "cat"],
)
def test_the_arithmetic_is_gone(name: str) -> None:
    graph = drop_zero_tangents(with_zero(SUMS[name]))
    gone = (aten.add, aten.sub, aten.addmm, aten.mm, aten.mul, aten.tanh_backward, aten.cat)
    assert count(graph, *gone) == 0


def test_a_missing_tangent_meets_no_infinity() -> None:
    graph = drop_zero_tangents(with_zero(lambda z, x, w: z @ w + x))
    torch.testing.assert_close(graph(X, W / 0), X)


def test_forward_mode_makes_no_product_with_a_missing_tangent() -> None:
    def f(x: Tensor, w: Tensor, t: Tensor) -> Any:
        return fxforms.jvp(lambda x: torch.tanh(x @ w) @ w, (x,), (t,))

    direction = X + 2
    assert count(traced(f, X, W, direction), aten.mm, aten.addmm) == 6
    graph = fxforms.trace(f)(X, W, direction)
    assert count(graph, aten.mm, aten.addmm) == 4
    hidden = torch.tanh(X @ W)
    expected = hidden @ W, ((direction @ W) * (1 - hidden**2)) @ W
    torch.testing.assert_close(graph(X, W, direction), expected)


def test_a_zero_of_the_users_is_multiplied_by() -> None:
    def f(x: Tensor, t: Tensor) -> Any:
        zero = torch.zeros(()).expand(3, 3)
        return fxforms.jvp(lambda x: torch.sin(x) @ zero, (x,), (t,))

    graph = fxforms.trace(f)(X, W)
    assert count(graph, aten.mm, aten.addmm) == 2
    assert graph(X / 0, W)[0].isnan().any()


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda f: fxforms.vmap(fxforms.jacfwd(fxforms.grad(f))), lambda x: -x.sin().diag_embed()),
        (lambda f: fxforms.vmap(fxforms.hessian(torch.sin)), lambda x: -third(x)),
        (
            lambda f: (
                lambda x: fxforms.vmap(lambda y: fxforms.jacfwd(fxforms.grad(f))(y).trace())(
                    x
                ).sum()
            ),
            lambda x: -x.sin().sum(),
        ),
    ],
    ids=["jacfwd of grad", "hessian of a vector", "Laplacian"],
)
def test_a_missing_tangent_that_has_a_batch(transform: Any, expected: Any) -> None:
    """torch reads the device off a zero tensor, which for a fake one that was reshaped is meta."""
    staged = fxforms.jit(transform(lambda x: x.sin().sum()), backend="eager")
    x = X[:2]
    assert staged(x).device.type == "cpu"
    torch.testing.assert_close(staged(x), expected(x))


def third(x: Tensor) -> Tensor:
    """A diagonal of three dims for each row of x."""
    return x.sin().diag_embed().unsqueeze(-1) * torch.eye(x.shape[-1])


def test_what_is_written_to_is_no_zero() -> None:
    def f(z: Tensor, x: Tensor, w: Tensor) -> Tensor:
        made = z * 1
        made[0].copy_(x[0])
        return made * w

    graph = drop_zero_tangents(with_zero(f))
    torch.testing.assert_close(graph(X, W), torch.cat([X[:1] * W[:1], ZERO[1:]]))


IDENTITIES: dict[str, Callable[..., Any]] = {
    "left": lambda x, w: torch.eye(3, 3) @ w + x,
    "right": lambda x, w: w @ torch.eye(3, 3) + x,
    "reshaped": lambda x, w: torch.eye(3, 3)[:, None].reshape(3, 3) @ w + x,
    "one in a list": lambda x, w: torch.cat([torch.eye(3, 3)], 1) @ w + x,
    "with a term": lambda x, w: torch.addmm(x[0], torch.eye(3, 3), w),
}
NO_IDENTITIES: dict[str, Callable[..., Any]] = {
    "not square": lambda x, w: torch.eye(2, 3) @ w,
    "scaled": lambda x, w: (2 * torch.eye(3, 3)) @ w,
    "written to": lambda x, w: torch.eye(3, 3).fill_diagonal_(2) @ w,
    "scaled term": lambda x, w: torch.addmm(x, torch.eye(3, 3), w, alpha=2),
}


@pytest.mark.parametrize("f", IDENTITIES.values(), ids=IDENTITIES)
def test_a_product_with_the_identity_is_folded(f: Callable[..., Any]) -> None:
    graph = fold_identities(traced(f, X, W))
    assert count(graph, aten.mm, aten.addmm) == 0
    torch.testing.assert_close(graph(X, W), f(X, W), rtol=0, atol=0)


@pytest.mark.parametrize("f", NO_IDENTITIES.values(), ids=NO_IDENTITIES)
def test_other_products_stay(f: Callable[..., Any]) -> None:
    graph = fold_identities(traced(f, X, W))
    assert count(graph, aten.mm, aten.addmm) == 1
    torch.testing.assert_close(graph(X, W), f(X, W), rtol=0, atol=0)
