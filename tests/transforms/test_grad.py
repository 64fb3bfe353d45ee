"""``grad``, ``grad_and_value`` and ``value_and_grad``."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from custom import Cube
from oracle import finite_jacobian, vec
from torch import Tensor
from torch.testing import assert_close

import fxforms

F64 = torch.float64


def test_against_finite_differences() -> None:
    x, w = vec(4), vec(3, 4)
    f = lambda x: torch.logsumexp((w @ x).tanh(), 0)  # noqa: E731
    assert_close(fxforms.grad(f)(x), finite_jacobian(f, x), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("argnums", "expected"),
    [
        *[(0, "y"), (1, "x"), (-1, "x"), (-2, "y"), ((0,), ("y",))],
        *[((1, 0), ("x", "y")), ((0, -1), ("y", "x"))],
    ],
    ids=str,
)
def test_argnums(argnums: Any, expected: Any) -> None:
    values = {"x": vec(3), "y": vec(3)}
    actual = fxforms.grad(lambda x, y: x @ y, argnums)(values["x"], values["y"])
    if isinstance(argnums, tuple):
        assert isinstance(actual, tuple)
        assert_close(actual, tuple(values[name] for name in expected))
    else:
        assert_close(actual, values[expected])


def test_value_gradient_and_aux() -> None:
    x = vec(3)
    f = lambda x: ((x**2).sum(), {"double": 2 * x, "text": "t"})  # noqa: E731
    gradient, aux = fxforms.grad(f, has_aux=True)(x)
    assert_close(gradient, 2 * x)
    assert_close(aux["double"], 2 * x)
    assert aux["text"] == "t"
    gradient, (value, aux) = fxforms.grad_and_value(f, has_aux=True)(x)
    assert_close((gradient, value, aux["double"]), (2 * x, x @ x, 2 * x))
    (value, aux), gradient = fxforms.value_and_grad(f, has_aux=True)(x)
    assert_close((gradient, value, aux["double"]), (2 * x, x @ x, 2 * x))
    assert_close(fxforms.value_and_grad(lambda x: x @ x)(x), (x @ x, 2 * x))
    assert_close(fxforms.grad_and_value(lambda x: x @ x)(x), (2 * x, x @ x))


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "tree",
    [
        lambda x, y: (x, [y]),
        lambda x, y: {"second": x, "first": y},
        lambda x, y: collections.OrderedDict(z=x, a=y),
        lambda x, y: Pair(x, {"w": y}),
    ],
)
def test_pytrees_keep_their_structure(tree: Any) -> None:
    x, y = vec(3), vec(3)

    def f(given: Any) -> Tensor:
        a, b = torch.utils._pytree.tree_leaves(given)
        return (a**2 * b).sum()

    actual = fxforms.grad(f)(tree(x, y))
    expected = tree(2 * x * y, x**2)
    assert type(actual) is type(expected)
    assert_close(actual, expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)


def test_an_input_that_is_not_used_has_gradient_zero() -> None:
    assert_close(fxforms.grad(lambda x, y: y.sum())(vec(2), vec(3)), torch.zeros(2, dtype=F64))
    assert_close(fxforms.grad(lambda x: torch.tensor(2.0))(vec(2)), torch.zeros(2, dtype=F64))


def test_keywords_and_non_tensor_arguments() -> None:
    x, w = vec(3), vec(3)

    def f(x: Tensor, power: int, *, weight: Tensor, options: dict[str, Any]) -> Tensor:
        return (x**power * weight).sum() * options["scale"]

    actual = fxforms.grad(f)(x, 2, weight=w, options={"scale": 3.0})
    assert_close(actual, 6 * x * w)


def test_a_keyword_of_an_outer_level_stays_differentiable() -> None:
    x, w = vec(3), vec(3)
    inner = lambda w: fxforms.grad(lambda x, w: (x**2 * w).sum())(x, w=w).sum()  # noqa: E731
    assert_close(fxforms.grad(inner)(w), 2 * x)


def test_the_graph_outside_is_kept() -> None:
    x = vec(3).requires_grad_()
    gradient = fxforms.grad(lambda x: Cube.apply(x).sum())(x)
    gradient.sum().backward()
    assert_close(x.grad, 6 * x.detach())


def test_a_captured_parameter_gets_no_gradient_from_the_inside() -> None:
    w = vec(3).requires_grad_()
    gradient, value = fxforms.grad_and_value(lambda x: (x * w).sum())(torch.ones(3, dtype=F64))
    assert w.grad is None
    (value + gradient.sum()).backward()
    assert_close(w.grad, torch.full((3,), 2.0, dtype=F64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_the_gradient_has_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    assert fxforms.grad(lambda x: x.abs().double().sum())(x).dtype == dtype


def test_a_complex_gradient_is_the_conjugate_derivative() -> None:
    """For ``|z|^2`` torch's convention gives ``2 z``; descent goes along its negative."""
    z = torch.randn(3, dtype=torch.complex128)
    assert_close(fxforms.grad(lambda z: (z * z.conj()).real.sum())(z), 2 * z)


def test_in_place_changes_inside_the_function() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(x)
        y[0] = 0
        y.add_(x)
        return y.sum()

    x = vec(3)
    assert_close(fxforms.grad(f)(x), 2 * x * torch.tensor([0.0, 1, 1], dtype=F64) + 1)


def test_in_place_change_of_an_argument_reaches_the_caller() -> None:
    """As with any function: the argument is the caller's tensor."""
    x = vec(3)
    before = x.clone()

    def f(x: Tensor) -> Tensor:
        return (x.mul_(2) ** 2).sum()

    with pytest.raises(RuntimeError, match="leaf Variable"):
        fxforms.grad(f)(x)
    assert_close(fxforms.grad(lambda x: f(x.clone()))(x), 8 * before)


def test_the_wrapper_keeps_the_name_of_the_function() -> None:
    def energy(x: Tensor) -> Tensor:
        """Half the square."""
        return x @ x / 2

    assert fxforms.grad(energy).__name__ == "energy"
    assert fxforms.grad(energy).__doc__ == "Half the square."
    x = vec(3)
    assert_close(fxforms.grad(functools.partial(torch.dot, x))(x), x)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    x = vec(*shape)
    assert_close(fxforms.grad(lambda x: Cube.apply(x).sum())(x), 3 * x**2)


def test_a_value_of_an_inner_level_that_leaked_still_depends_on_the_outer() -> None:
    def f(x: Tensor) -> Tensor:
        kept = []

        def inner(y: Tensor) -> Tensor:
            kept.append(y**2)
            return kept[0]

        fxforms.grad(inner)(x)
        return kept[0] * 1

    assert_close(fxforms.grad(f)(torch.tensor(3.0)), torch.tensor(6.0))


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_a_leaked_value_may_be_the_output_itself(transform: str) -> None:
    def f(x: Tensor) -> Tensor:
        kept = []

        def inner(y: Tensor) -> Tensor:
            kept.append(y**2)
            return kept[0]

        fxforms.grad(inner)(x)
        return kept[0]

    x = torch.tensor(3.0)
    if transform == "grad":
        assert_close(fxforms.grad(f)(x), torch.tensor(6.0))
    elif transform == "jvp":
        assert_close(fxforms.jvp(f, (x,), (x,)), (torch.tensor(9.0), torch.tensor(18.0)))
    else:
        x = torch.tensor([1.0, 2.0])
        result = fxforms.vmap(f)(x)
        assert result.tolist() == [1.0, 4.0]
