"""What a jitted function changes in place is changed for the caller."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms


def jit(f: Callable[..., Any], **options: Any) -> Any:
    return fxforms.jit(f, **{"backend": "eager", **options})


def add_to_first(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y)


@pytest.mark.parametrize(
    "options", [{"backend": "eager"}, {"backend": "inductor", "compile": "wait"}]
)
def test_an_argument_is_changed_and_returned_as_itself(options: dict[str, str]) -> None:
    f = jit(add_to_first, **options)
    x = torch.zeros(3)
    for count in (1, 2, 3):
        assert f(x, torch.ones(3)) is x
        assert torch.equal(x, torch.full((3,), float(count)))
    assert f.cache_info().misses == 1


def test_a_view_and_a_part_of_an_argument() -> None:
    def f(x: Tensor) -> Tensor:
        x[0].mul_(2)
        x.t()[1].fill_(5.0)
        return x.sum()

    x, y = torch.ones(2, 3), torch.ones(2, 3)
    jitted = jit(f)
    for _ in range(2):
        assert torch.equal(jitted(x), f(y))
        assert torch.equal(x, y)


def test_a_captured_tensor() -> None:
    total = torch.zeros(3)

    def f(x: Tensor) -> Tensor:
        total.add_(x)
        return total * 2

    jitted = jit(f)
    for count in (1, 2, 3):
        assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 2.0 * count))
        assert torch.equal(total, torch.full((3,), float(count)))
    assert jitted.cache_info().misses == 1


def test_an_output_that_is_a_view_of_an_argument() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    y = jit(lambda x: x.t())(x)
    assert torch.equal(y, x.t())


def test_arguments_that_share_memory() -> None:
    f = jit(add_to_first)
    f(torch.zeros(3), torch.ones(3))
    x = torch.ones(3)
    f(x, x)
    assert torch.equal(x, torch.full((3,), 2.0))
    x = torch.arange(4.0)
    with pytest.raises(RuntimeError, match="single memory location"):  # as in eager
        f(x[:3], x[1:])


def test_arguments_that_overlap_in_a_way_that_shows() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    jitted = jit(f)
    jitted(torch.zeros(3), torch.ones(3))
    x, y = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(jitted(x[:3], x[1:]), f(y[:3], y[1:]))
    assert torch.equal(x, y)


def test_an_argument_that_shares_memory_with_a_captured_tensor() -> None:
    total = torch.zeros(3)

    def f(x: Tensor) -> Tensor:
        total.add_(1)
        return x * 2

    jitted = jit(f)
    jitted(torch.ones(3))
    assert torch.equal(jitted(total), torch.full((3,), 4.0))


def test_the_change_of_an_argument_is_recorded() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    out = jit(add_to_first)(y, x)
    assert out is y
    out.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_change_of_a_leaf_that_requires_grad_is_refused_as_in_eager() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        jit(add_to_first)(x, torch.ones(3))
    assert torch.equal(x.detach(), torch.ones(3))


def test_a_change_inside_a_transform_outside() -> None:
    f = jit(lambda x: (x.clone().mul_(2) ** 2).sum())
    x = torch.tensor([1.0, 2.0])
    assert torch.equal(fxforms.grad(f)(x), 8 * x)

    def changed(x: Tensor) -> Tensor:
        y = x * 1
        jit(add_to_first)(y, x)
        return (y**2).sum()

    assert torch.equal(fxforms.grad(changed)(x), 8 * x)
    assert torch.equal(fxforms.vmap(changed)(x), 4 * x**2)


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).square().sum()


@pytest.mark.parametrize("grads", [True, False])
def test_batch_norm_statistics(grads: bool) -> None:
    model = Norm()
    twin = copy.deepcopy(model)
    f = jit(model)
    torch.set_grad_enabled(grads)
    try:
        for _ in range(3):
            x = torch.randn(8, 3)
            got, expected = f(x), twin(x)
            torch.testing.assert_close(got, expected)
            if grads:
                got.backward()
                expected.backward()
            torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
    finally:
        torch.set_grad_enabled(True)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert f.cache_info().misses == 1
    assert model.net[1].num_batches_tracked == 3
    model.eval(), twin.eval()
    torch.testing.assert_close(f(x), twin(x))


def test_a_buffer_that_is_bound_anew() -> None:
    class Count(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x * self.count

    model = Count()
    before = model.count
    with pytest.raises(fxforms.errors.TraceError, match="'count' of 'Count'"):
        jit(model)(torch.ones(2))
    assert model.count is before
    assert torch.equal(model(torch.ones(2)), torch.ones(2))


def test_tensors_left_in_variables() -> None:
    seen: list[Any] = [1]
    table: dict[str, Any] = {"a": {"b": 1}}
    last = None

    def appends(x: Tensor) -> Tensor:
        seen.append(x * 2)
        return x

    def enters(x: Tensor) -> Tensor:
        table["a"]["b"] = x
        return x * 2

    def binds(x: Tensor) -> Tensor:
        nonlocal last
        last = x.sin()
        return x

    for f, place in ((appends, "a list of 'seen'"), (enters, "'b' of 'table'"), (binds, "'last'")):
        with pytest.raises(fxforms.errors.TraceError, match=place):
            jit(f)(torch.ones(3))
    assert (seen, table, last) == ([1], {"a": {"b": 1}}, None)


def test_metadata_of_an_argument() -> None:
    """A resize is no change of values; it is refused, or done to the caller's tensor."""
    x, y = torch.zeros(4), torch.zeros(4)
    f = lambda x: x.resize_(2).fill_(1.0)  # noqa: E731
    f(y)
    try:
        jit(f)(x)
    except (fxforms.errors.FxformsError, RuntimeError):
        assert torch.equal(x, torch.zeros(4))
    else:
        assert torch.equal(x, y)
