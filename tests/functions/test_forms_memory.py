"""No tensor outlives a call of a Function in another form; first calls in several threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from combined_cases import Sine
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, Op, function, rows

import fxforms


def in_containers() -> Op:
    op = function(
        "Tree",
        forward=lambda ctx, d: ctx.save_for_backward(d["x"].cos()) or {"y": [d["x"].sin()]},
        backward=lambda ctx, g: {"x": g["y"][0] * ctx.saved_tensors[0]},
    )
    return lambda x: op.apply({"x": x})["y"][0]


def by_jvp() -> Op:
    return function(
        "Pushed",
        forward=lambda ctx, x: ctx.save_for_forward(x.cos()) or x.sin(),
        jvp=lambda ctx, t: t * ctx.saved_tensors[0],
    ).apply


def looped() -> Op:
    return function(
        "Looped",
        forward=lambda x: x.sin(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        backward=lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        vmap_method="loop",
    ).apply


def decorated() -> Op:
    op = fxforms.custom_vjp(lambda x: x.sin())
    op.defvjp(lambda x: (x.sin(), {"cosine": x.cos()}), lambda saved, ct: (saved["cosine"] * ct,))
    return op


MAKERS = {
    "residual": lambda: Sine.apply,
    "containers": in_containers,
    "jvp": by_jvp,
    "loop": looped,
    "custom_vjp": decorated,
}


@pytest.fixture(scope="module", autouse=True)
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def live_tensors() -> int:
    return sum(issubclass(type(x), Tensor) for x in gc.get_objects())


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("form", MAKERS)
def test_no_tensor_outlives_a_call(form: str, program: str) -> None:
    op = MAKERS[form]()
    made: list[weakref.ref[Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        y = op(x * 1)
        made.extend([weakref.ref(x), weakref.ref(y)])
        return y * 1

    PROGRAMS[program](fxforms, watched, vec(3))  # what is made once a class is made here
    made.clear()
    before = live_tensors()
    x = vec(3)
    PROGRAMS[program](fxforms, watched, x)
    del x
    assert made
    assert [reference() for reference in made] == [None] * len(made)
    assert live_tensors() == before


@pytest.mark.parametrize("form", MAKERS)
def test_the_first_calls_of_a_class_in_several_threads(form: str) -> None:
    """What is found out and made at the first call is the same whoever makes it."""
    op = MAKERS[form]()
    op(vec(3))
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    results: list[Any] = []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        hessian = fxforms.vmap(fxforms.hessian(lambda x: op(x).sum()))(rows(x))
        slope = fxforms.grad(lambda X: fxforms.vmap(op)(X).sum())(rows(x))
        results.append((hessian, slope))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for hessian, slope in results:
        assert_close(hessian, torch.diag_embed(-rows(x).sin()))
        assert_close(slope, rows(x).cos())
