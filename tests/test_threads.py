"""Eight threads that compose transforms at once, each with right values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from custom import Cube, Product
from threads import run_threads
from torch import Tensor

import fxforms

THREADS = 8
CALLS = 1000


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


Program = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]

# Each with its closed form for x of shape (3,).
PROGRAMS: dict[str, Program] = {
    "jvp": (lambda x: fxforms.jvp(Cube.apply, (x,), (x,))[1], lambda x: 3 * x**3),
    "vmap of grad": (lambda x: fxforms.vmap(fxforms.grad(Cube.apply))(x), lambda x: 3 * x**2),
    "grad of vmap": (
        lambda x: fxforms.grad(lambda x: fxforms.vmap(Product.apply, (0, None))(x, x).sum())(x),
        lambda x: 2 * x.sum().expand(3),
    ),
    "jvp of vmap of jvp": (
        lambda x: fxforms.jvp(
            fxforms.vmap(lambda y: fxforms.jvp(Cube.apply, (y,), (torch.ones_like(y),))[1]),
            (x,),
            (torch.ones_like(x),),
        )[1],
        lambda x: 6 * x,
    ),
    "jacfwd of grad": (
        lambda x: fxforms.jacfwd(fxforms.grad(lambda x: Cube.apply(x).sum()))(x).diagonal(),
        lambda x: 6 * x,
    ),
}


def points(seed: int, count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(3, dtype=torch.float64, generator=generator)


def test_a_mix_of_programs() -> None:
    """A thread starts elsewhere in the list, so that unlike programs meet."""
    programs = list(PROGRAMS.items())

    def body(index: int) -> None:
        for i, x in enumerate(points(index, CALLS)):
            name, (actual, expected) = programs[(i + index) % len(programs)]
            torch.testing.assert_close(actual(x), expected(x), msg=f"{name}, call {i}")

    run_threads(THREADS, body)


def test_jvp_levels_share_torch_dual_level_without_closing_it_under_each_other() -> None:
    """Half the threads leave jvp by an exception."""

    def body(index: int) -> None:
        def f(x: Tensor) -> Tensor:
            if index % 2:
                raise KeyError(index)
            return Cube.apply(x)

        for x in points(index, CALLS):
            if index % 2:
                with pytest.raises(KeyError):
                    fxforms.jvp(f, (x,), (x,))
            else:
                torch.testing.assert_close(fxforms.jvp(f, (x,), (x,))[1], 3 * x**3)

    run_threads(THREADS, body)


def test_a_function_first_used_by_all_threads_at_once() -> None:
    """Its rules are resolved lazily; the race must not make two of them disagree."""

    def fresh() -> Any:
        class Fresh(Product):
            pass

        return Fresh

    for seed in range(20):
        function = fresh()

        def body(index: int, function: Any = function, seed: int = seed) -> None:
            for x in points(seed * THREADS + index, 2):
                gradient = fxforms.vmap(fxforms.grad(lambda x: function.apply(x, x)))(x)
                torch.testing.assert_close(gradient, 2 * x)

        run_threads(THREADS, body)


def test_one_pullback_called_from_many_threads() -> None:
    x = torch.randn(3, dtype=torch.float64)
    _, pullback = fxforms.vjp(Cube.apply, x)
    mapped = fxforms.vmap(pullback)

    def body(index: int) -> None:
        for g in points(index, 100):
            torch.testing.assert_close(pullback(g)[0], 3 * x**2 * g)
            torch.testing.assert_close(mapped(torch.stack([g, x]))[0][0], 3 * x**2 * g)

    run_threads(THREADS, body)
