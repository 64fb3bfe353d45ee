"""No tensor outlives a call, with the cycle collector off; many calls gain nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from custom import Attributes, Cube, Mix, Nested, Product, Triple
from torch import Tensor

import fxforms


@pytest.fixture(scope="module", autouse=True)
def collector_off() -> Iterator[None]:
    """Also hides from the collector what is there already, so that looking is quick."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def live_tensors() -> int:
    """How many tensors made since the module began are alive."""
    return sum(issubclass(type(x), Tensor) for x in gc.get_objects())


def total(tree: Any) -> Tensor:
    return sum(x.sum() for x in torch.utils._pytree.tree_leaves(tree))


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "torch operations": lambda x: x.sin() * x,
    "Cube": Cube.apply,
    "Product": lambda x: Product.apply(x, x),
    "Attributes": lambda x: total(Attributes.apply(x, x)),
    "Nested": lambda x: total(Nested.apply(x, x)),
    "Mix": lambda x: Mix.apply(x, 2.0, x)[0],
    "Triple": lambda x: Triple.apply(x * 1),
}
PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "plain": lambda f, x: f(x.requires_grad_()).sum().backward(),
    "grad": lambda f, x: fxforms.grad(lambda x: f(x).sum())(x),
    "value_and_grad": lambda f, x: fxforms.value_and_grad(lambda x: (f(x).sum(), x), 0, True)(x),
    "vjp": lambda f, x: fxforms.vjp(f, x),
    "jvp": lambda f, x: fxforms.jvp(f, (x,), (x,)),
    "vmap": lambda f, x: fxforms.vmap(f)(x),
    "vmap of grad": lambda f, x: fxforms.vmap(fxforms.grad(lambda x: f(x).sum()))(x),
    "grad of vmap": lambda f, x: fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(x),
    "grad of grad": lambda f, x: fxforms.grad(
        lambda x: fxforms.grad(lambda x: f(x).sum())(x).sum()
    )(x),
    "jvp of jvp": lambda f, x: fxforms.jvp(lambda x: fxforms.jvp(f, (x,), (x,)), (x,), (x,)),
    "jacrev": lambda f, x: fxforms.jacrev(f, chunk_size=2)(x),
    "vmap of hessian": lambda f, x: fxforms.vmap(fxforms.hessian(lambda x: f(x).sum()))(x),
    "linearize": lambda f, x: fxforms.linearize(f, x)[1](x),
    "hvp": lambda f, x: fxforms.hvp(lambda x: f(x).sum(), (x,), (x,)),
    "chunks": lambda f, x: fxforms.vmap(f, chunk_size=1)(x),
}


def broken(f: Any, x: Tensor) -> None:
    """An error half way, at two levels."""

    def body(x: Tensor) -> Tensor:
        f(x)
        raise KeyError

    with pytest.raises(KeyError):
        fxforms.vmap(fxforms.grad(body))(x)


PROGRAMS["error"] = broken


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_tensor_outlives_a_call(function: str, program: str) -> None:
    """Neither the input nor anything that the function makes."""
    made: list[weakref.ref[Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        y = FUNCTIONS[function](x * 1)
        made.extend([weakref.ref(x), weakref.ref(y)])
        return y * 1

    run = PROGRAMS[program]
    run(watched, torch.randn(2, 3))  # what is made once, torch's forward rules too, is made here
    made.clear()
    before = live_tensors()
    x = torch.randn(2, 3)
    given = weakref.ref(x)
    run(watched, x)
    assert made
    del x
    assert given() is None
    assert [reference() for reference in made] == [None] * len(made)
    assert live_tensors() == before


def test_the_results_are_all_that_a_pullback_keeps() -> None:
    x = torch.randn(2, 3)
    reference = weakref.ref(x)
    _, pullback = fxforms.vjp(lambda x: Cube.apply(x), x)
    pullback(torch.ones(2, 3))
    del x
    assert reference() is not None  # saved for the pullback
    del pullback, _
    assert reference() is None


@pytest.mark.parametrize("program", PROGRAMS)
def test_many_calls_gain_nothing(program: str) -> None:
    """Objects of any kind; one gained in each call would show a hundredfold."""
    run, f = PROGRAMS[program], FUNCTIONS["Mix"]
    x = torch.randn(2, 3)
    for _ in range(5):
        run(f, x.clone())
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        run(f, x.clone())
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_no_cycles_are_left_for_the_collector() -> None:
    x = torch.randn(2, 3)
    for run in (PROGRAMS["vmap of hessian"], PROGRAMS["grad of vmap"], PROGRAMS["jvp"]):
        run(FUNCTIONS["Cube"], x)
        before = live_tensors()
        for _ in range(20):
            run(FUNCTIONS["Cube"], x)
        assert live_tensors() == before
