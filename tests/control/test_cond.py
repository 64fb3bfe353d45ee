"""``cond`` outside of a trace: one branch for one predicate, both for a batch of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import fxforms
from fxforms import cond, grad, hessian, hvp, jacfwd, jacrev, jvp, linearize, vjp, vmap

staged = partial(fxforms.jit, backend="eager")
X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
SIGNED = torch.tensor([4.0, 0.0, -1.0], dtype=torch.float64)


def piecewise(x: torch.Tensor) -> torch.Tensor:
    """x**3 where the sum is positive, else exp(2 x), summed."""
    return cond(x.sum() > 0, lambda x: (x**3).sum(), lambda x: (2 * x).exp().sum(), x)


def value(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() if x.sum() > 0 else (2 * x).exp().sum()


def slope(x: torch.Tensor) -> torch.Tensor:
    return 3 * x**2 if x.sum() > 0 else 2 * (2 * x).exp()


def curvature(x: torch.Tensor) -> torch.Tensor:
    return torch.diag(6 * x if x.sum() > 0 else 4 * (2 * x).exp())


def root(x: torch.Tensor) -> torch.Tensor:
    """The branch for true is not differentiable at 0 and NaN below."""
    return cond(x > 0, torch.sqrt, torch.zeros_like, x)


def guarded(f: Any) -> torch.Tensor:
    """``f`` of the root of each sample by a loop; what is not positive has the derivative 0."""
    return torch.stack([f(x) if x > 0 else torch.zeros_like(x) for x in SIGNED])


BOTH_SIDES = pytest.mark.parametrize("x", [X, -X])


@BOTH_SIDES
def test_values_and_derivatives_are_those_of_the_branch(x: torch.Tensor) -> None:
    assert torch.equal(piecewise(x), value(x))
    for transform in (grad, jacrev, jacfwd):
        torch.testing.assert_close(transform(piecewise)(x), slope(x))
    torch.testing.assert_close(vjp(piecewise, x)[1](x.new_tensor(3.0))[0], 3 * slope(x))
    for found in (jvp(piecewise, (x,), (X,))[1], linearize(piecewise, x)[1](X)):
        torch.testing.assert_close(found, slope(x) @ X)


@BOTH_SIDES
@pytest.mark.parametrize(
    "transform",
    [hessian, *(lambda f, a=a, b=b: a(b(f)) for a in (jacrev, jacfwd) for b in (jacrev, jacfwd))],
)
def test_second_derivatives_are_those_of_the_branch(x: torch.Tensor, transform: Any) -> None:
    torch.testing.assert_close(transform(piecewise)(x), curvature(x))
    torch.testing.assert_close(hvp(piecewise, (x,), (X,))[1][0], curvature(x) @ X)


@BOTH_SIDES
def test_plain_autograd_goes_through_it(x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(piecewise(x), x, create_graph=True)
    torch.testing.assert_close(first, slope(x))
    (first**2).sum().backward()
    torch.testing.assert_close(x.grad, 2 * curvature(x.detach()) @ slope(x.detach()))


@pytest.mark.parametrize("pred", [True, False])
@pytest.mark.parametrize("wrap", [bool, torch.tensor, lambda p: torch.tensor([[p]])])
def test_only_the_branch_that_is_taken_runs(pred: bool, wrap: Any) -> None:
    ran: list[str] = []

    def branch(name: str) -> Any:
        return lambda x: ran.append(name) or x.sin().sum()

    for transform in (lambda f: f, grad, hessian, vmap):
        transform(lambda x: cond(wrap(pred), branch("true"), branch("false"), x))(X)
    assert set(ran) == {"true" if pred else "false"}


def test_the_predicate_has_no_derivative() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x > 1, lambda: x.new_tensor(5.0), lambda: x.new_tensor(7.0))

    assert torch.equal(grad(f)(X[2]), torch.zeros_like(X[2]))


def test_operands_and_results_are_pytrees() -> None:
    operands = {"w": X, "scale": [torch.tensor(2.0, dtype=torch.float64), 3]}

    def twice(tree: dict[str, Any], name: str) -> dict[str, Any]:
        return {name: tree["w"] * tree["scale"][0], "kept": tree["scale"][1]}

    def mapped(w: torch.Tensor) -> dict[str, Any]:
        tree = operands | {"w": w}
        return cond(w > 0, twice, lambda tree, name: {name: -tree["w"], "kept": 3}, tree, "out")

    out = vmap(mapped, out_dims={"out": 0, "kept": None})(X)
    assert torch.equal(out["out"], torch.where(X > 0, 2 * X, -X))
    assert out["kept"] == 3


def test_one_predicate_for_the_batch_runs_one_branch() -> None:
    rows = torch.stack([X, 2 * X])
    ran = []
    for pred in (True, False):
        found = vmap(
            grad(
                lambda x, pred=pred: cond(
                    torch.tensor(pred),
                    lambda: ran.append("true") or (x**3).sum(),
                    lambda: ran.append("false") or (2 * x).exp().sum(),
                )
            )
        )(rows)
        torch.testing.assert_close(found, 3 * rows**2 if pred else 2 * (2 * rows).exp())
    assert ran == ["true", "false"]


@pytest.mark.parametrize("outer", [lambda f: f, staged])
def test_a_batched_predicate_selects(outer: Any) -> None:
    rows = torch.stack([X, -X, 2 * X])
    torch.testing.assert_close(outer(vmap(piecewise))(rows), torch.stack([*map(value, rows)]))
    torch.testing.assert_close(outer(vmap(grad(piecewise)))(rows), torch.stack([*map(slope, rows)]))
    torch.testing.assert_close(
        outer(vmap(hessian(piecewise)))(rows), torch.stack([*map(curvature, rows)])
    )


@pytest.mark.parametrize("outer", [lambda f: f, staged])
@pytest.mark.parametrize(
    ("transform", "closed_form"),
    [
        (lambda f: f, torch.sqrt),
        (grad, lambda x: 0.5 * x**-0.5),
        (jacfwd, lambda x: 0.5 * x**-0.5),
        (lambda f: grad(grad(f)), lambda x: -0.25 * x**-1.5),
        (lambda f: jacfwd(grad(f)), lambda x: -0.25 * x**-1.5),
        (lambda f: grad(jacfwd(f)), lambda x: -0.25 * x**-1.5),
        (lambda f: jacfwd(jacfwd(f)), lambda x: -0.25 * x**-1.5),
    ],
)
def test_no_nan_of_the_other_branch_gets_out(outer: Any, transform: Any, closed_form: Any) -> None:
    found = outer(vmap(transform(root)))(SIGNED)
    torch.testing.assert_close(found, guarded(closed_form))


def test_nor_into_a_gradient_taken_around_the_batch() -> None:
    torch.testing.assert_close(
        grad(lambda x: vmap(root)(x).sum())(SIGNED), guarded(lambda x: 0.5 * x**-0.5)
    )
    x = SIGNED.clone().requires_grad_()
    vmap(root)(x).sum().backward()
    torch.testing.assert_close(x.grad, guarded(lambda x: 0.5 * x**-0.5))


class Reciprocal(fxforms.Function):
    """1 / x; its own backward rule is off by a factor that shows whether it was used."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return 1 / x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return -10 * cotangent / x**2


@pytest.mark.parametrize("outer", [lambda f: f, staged])
def test_a_captured_tensor_gets_no_nan_either(outer: Any) -> None:
    """Weights that all samples share, met by an operator, a method and a custom Function."""
    w = torch.tensor(2.0, dtype=torch.float64)

    def loss(w: torch.Tensor) -> torch.Tensor:
        def sample(x: torch.Tensor) -> torch.Tensor:
            taken = lambda: torch.log(w * x) + (w * x).sqrt() + Reciprocal.apply(x * w)  # noqa: E731
            return cond(x > 0, taken, lambda: w * x)

        return vmap(sample)(SIGNED).sum()

    expected = 1 / w + 0.5 * (4 / w) ** 0.5 - 10 / (4 * w**2) + 0.0 - 1.0
    torch.testing.assert_close(outer(grad(loss))(w), expected)


@pytest.mark.parametrize("outer", [lambda f: f, staged])
def test_a_captured_operand_of_a_custom_function(outer: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x > 0, lambda: Reciprocal.apply(x), lambda: 0 * x)

    torch.testing.assert_close(outer(vmap(grad(f)))(SIGNED), guarded(lambda x: -10 / x**2))
    torch.testing.assert_close(outer(grad(f))(SIGNED[0]), -10 / SIGNED[0] ** 2)


def test_parameters_of_modules_in_branches() -> None:
    """Against a loop over the samples by plain autograd."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3).double() for _ in range(2)]
    rows = torch.randn(5, 3, dtype=torch.float64)

    def sample(x: torch.Tensor) -> torch.Tensor:
        return cond(x.sum() > 0, lambda x: layers[0](x).exp(), layers[1], x).sum()

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        return (layers[0](x).exp() if x.sum() > 0 else layers[1](x)).sum()

    parameters = [p for layer in layers for p in layer.parameters()]
    expected = torch.autograd.grad(sum(map(by_hand, rows)), parameters)
    found = torch.autograd.grad(vmap(sample)(rows).sum(), parameters)
    torch.testing.assert_close(found, expected)


def test_gradients_inside_of_a_branch() -> None:
    """A level inside a branch sees the tensors of the batch around it."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x > 0, grad(lambda y: y**3 * x), lambda x: -x, x)

    rows = SIGNED
    torch.testing.assert_close(vmap(f)(rows), torch.where(rows > 0, 3 * rows**3, -rows))
    torch.testing.assert_close(vmap(grad(f))(rows), torch.where(rows > 0, 9 * rows**2, -1.0))


def test_predicates_in_each_other() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inner = lambda: cond(y > x, lambda: torch.log(y - x), lambda: x * y)  # noqa: E731
        return cond(x > 0, inner, lambda: x**2)

    xs = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    ys = torch.tensor([3.0, -3.0, 3.0, -3.0], dtype=torch.float64)
    found = vmap(grad(f, argnums=(0, 1)))(xs, ys)
    torch.testing.assert_close(found[0], xs.new_tensor([-0.5, -3.0, -2.0, -2.0]))
    torch.testing.assert_close(found[1], xs.new_tensor([0.5, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(staged(vmap(grad(f, argnums=(0, 1))))(xs, ys), found)


@pytest.mark.parametrize("inner", [grad, torch.func.grad])
@pytest.mark.parametrize("outer", [vmap, torch.func.vmap])
def test_transforms_of_torch_func_pass_through(inner: Any, outer: Any) -> None:
    torch.testing.assert_close(outer(inner(root))(SIGNED), guarded(lambda x: 0.5 * x**-0.5))


def test_inside_torch_compile_it_breaks_the_graph() -> None:
    compiled = torch.compile(piecewise, backend="eager")
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), value(x))
