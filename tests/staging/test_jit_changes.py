"""What a function does to its arguments besides their numbers: carried out, or an error."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxforms
from fxforms.errors import TraceError


def jit(f: Callable[..., Any], **options: Any) -> Any:
    return fxforms.jit(f, **{"backend": "eager", **options})


def put(container: Any, key: Any, value: Any) -> Tensor:
    container[key] = value
    return torch.ones(1)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d, xs: put(d, "y", d["x"] * 2), "'y' is new"),
        (lambda d, xs: put(d, "x", d["x"] * 2), "'x' is bound"),
        (lambda d, xs: put(d, "n", 3), "'n' is bound"),
        (lambda d, xs: d.pop("x"), "'x' is removed"),
        (lambda d, xs: xs.append(xs[0]) or xs[0], "1 is new"),
        (lambda d, xs: xs.clear() or torch.ones(1), "0 is removed"),
        (lambda d, xs: put(d["inner"], "z", xs[0]), "'z' is new"),
    ],
)
def test_a_container_that_is_changed_is_refused(change: Callable[..., Any], place: str) -> None:
    d, xs = {"x": torch.ones(2), "n": 2, "inner": OrderedDict(z=torch.ones(1))}, [torch.ones(2)]
    if place == "'z' is new":
        del d["inner"]["z"]
    before = repr((d, xs))
    f = jit(change)
    for _ in range(2):
        with pytest.raises(TraceError, match=place):
            f(d, xs)
    assert repr((d, xs)) == before
    assert f.cache_info().size == 0


def test_a_copy_and_keywords_may_be_changed() -> None:
    def f(d: dict[str, Tensor], **rest: Tensor) -> dict[str, Tensor]:
        d = dict(d)
        d["y"] = d.pop("x") * rest.pop("scale")
        return d | rest

    found = jit(f)({"x": torch.ones(2)}, scale=torch.tensor(3.0), b=torch.ones(1))
    assert torch.equal(found["y"], torch.full((2,), 3.0))
    assert sorted(found) == ["b", "y"]


def changed(x: Tensor, how: str) -> Tensor:
    if how == "data":
        x.data = x.data * 2
    elif how == "set":
        x.set_(torch.full((2, 3), 5.0))
    elif how == "resize":
        x.resize_(3)
    elif how == "transpose":
        x.t_()
    elif how == "unsqueeze":
        x.unsqueeze_(0)
    else:
        x.grad = torch.ones(2, 3)
    return x + 1


@pytest.mark.parametrize("how", ["data", "set", "resize", "transpose", "unsqueeze", "grad"])
@pytest.mark.parametrize("captured", [True, False])
def test_other_memory_another_shape_or_gradient_is_refused(how: str, captured: bool) -> None:
    x = torch.ones(2, 3)
    f = jit((lambda y: changed(x, how)) if captured else (lambda x: changed(x, how)))
    with pytest.raises(TraceError):
        f(x)
    assert torch.equal(x, torch.ones(2, 3))
    assert x.grad is None


def test_local_tensors_may_change_in_any_way_but_data() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(2, 3)
        y.set_(x * 2)
        y.t_().unsqueeze_(0)
        z = y.detach().requires_grad_()
        (z**2).sum().backward()
        return z.grad

    x = torch.randn(2, 3)
    torch.testing.assert_close(jit(f)(x), 4 * x.t()[None])


def test_a_gradient_that_is_read() -> None:
    w = torch.ones(2, requires_grad=True)
    w.grad = torch.ones(2)
    f = jit(lambda x: x - w.grad)
    assert torch.equal(f(torch.ones(2)), torch.zeros(2))
    w.grad.fill_(3)
    assert torch.equal(f(torch.ones(2)), torch.full((2,), -2.0))
    w.grad = torch.full((2,), 5.0)
    assert torch.equal(f(torch.ones(2)), torch.full((2,), -4.0))
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(TraceError, match=r"reads \.grad"):
        jit(lambda x: x if x.grad is None else x.grad)(x)


def test_an_optimiser_inside() -> None:
    net = torch.nn.Linear(2, 1, bias=False)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    net(torch.tensor([[1.0, 2.0]])).sum().backward()
    before = net.weight.detach().clone()
    step = jit(lambda: optimiser.step())
    for count in (1, 2):
        step()
        torch.testing.assert_close(net.weight, before - count * 0.5 * torch.tensor([[1.0, 2.0]]))
    with pytest.raises(TraceError, match=r"sets \.grad"):
        jit(lambda: optimiser.zero_grad())()


def test_requires_grad_of_an_argument() -> None:
    """As a force from an energy: the flag reaches the caller's tensor."""

    def force(x: Tensor) -> Tensor:
        x.requires_grad_()
        return torch.autograd.grad((x**3).sum(), x)[0]

    f, x = jit(force), torch.tensor([1.0, 2.0])
    for _ in range(2):
        assert torch.equal(f(x), torch.tensor([3.0, 12.0]))
        assert x.requires_grad

    def both(x: Tensor) -> Tensor:
        x.requires_grad_()
        return (x**2).sum()

    y = torch.tensor([1.0, 2.0])
    jit(both)(y).backward()
    assert torch.equal(y.grad, torch.tensor([2.0, 4.0]))
    z = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not jit(lambda z: z.requires_grad_(False) * 2)(z).requires_grad
    assert not z.requires_grad


def test_a_parameter_that_is_changed_without_recording() -> None:
    w = torch.ones(2, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            w.mul_(2)
        return (w * x).sum()

    jitted = jit(f)
    for count in (1, 2):
        out = jitted(torch.ones(2))
        assert out == 2 * 2**count
        out.backward()
        assert torch.equal(w.grad, torch.full((2,), float(count)))
        assert torch.equal(w.detach(), torch.full((2,), 2.0**count))
