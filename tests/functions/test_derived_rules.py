"""Each set of rules that a user may leave out, in each form, under every composition."""

from __future__ import annotations

import functools
from typing import Any

import oracle
import pytest
import torch
from custom import plain
from oracle import assert_trees_close, vec
from rule_sets import DERIVATIVES, FORMS, VMAPS, as_op, compose, make, words
from torch import Tensor
from unary import FIRST_ORDER, PROGRAMS, check, function

import fxforms


@functools.cache
def point() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return vec(2), vec(2)


@functools.cache
def expected(word: str) -> tuple[Tensor, Tensor]:
    return compose(oracle, plain, word)(*point())


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def form(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("vmap", VMAPS)
@pytest.mark.parametrize("derivatives", DERIVATIVES)
@pytest.mark.parametrize("word", words(2))
def test_to_second_order(form: Any, derivatives: str, vmap: str, word: str) -> None:
    op = as_op(make(form, derivatives, vmap))
    assert_trees_close(compose(fxforms, op, word)(*point()), expected(word))


@pytest.mark.parametrize("vmap", VMAPS)
@pytest.mark.parametrize("derivatives", DERIVATIVES)
@pytest.mark.parametrize("word", [word for word in words(3) if len(word) == 3])
def test_of_third_order(form: Any, derivatives: str, vmap: str, word: str) -> None:
    op = as_op(make(form, derivatives, vmap))
    assert_trees_close(compose(fxforms, op, word)(*point()), expected(word))


@pytest.mark.parametrize("vmap", VMAPS)
@pytest.mark.parametrize("derivatives", DERIVATIVES)
def test_the_sets_lack_what_they_say(form: Any, derivatives: str, vmap: str) -> None:
    origin = make(form, derivatives, vmap).rules()
    assert (origin["backward"] == "given") == ("backward" in derivatives)
    assert (origin["jvp"] == "given") == ("jvp" in derivatives)
    assert (origin["vmap"] == "given") == (vmap == "by hand")
    assert ("one call a sample" in origin["vmap"]) == (vmap == "loop")
    assert not any("absent" in text for text in origin.values())


@pytest.mark.parametrize("program", ["grad", "grad_grad", "jvp", "jvp_grad", "grad_jvp", "jvp_jvp"])
def test_a_backward_that_skips_zero_cotangents(program: str) -> None:
    """Still a linear map, though written with a branch, as much code is."""

    def backward(ctx: Any, g: Tensor) -> Tensor | None:
        return None if not g.any() else g * ctx.saved_tensors[0].cos()

    op = function(
        "Skipping",
        forward=lambda ctx, x: ctx.save_for_backward(x) or x.sin(),
        backward=backward,
    )
    check(program, op.apply, torch.sin)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_subclass_that_overrides_one_rule(program: str) -> None:
    """The other rules are derived from it, not from the base's."""

    class Base(fxforms.Function):
        forward = staticmethod(lambda ctx, x: ctx.save_for_backward(x) or x.sin())
        backward = staticmethod(lambda ctx, g: g * ctx.saved_tensors[0])

    Base.apply(vec(3))

    class Derived(Base):
        backward = staticmethod(lambda ctx, g: g * ctx.saved_tensors[0].cos())

    check(program, Derived.apply, torch.sin)


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize("program", FIRST_ORDER)
def test_a_backward_from_a_jvp_that_changes_its_tangent(program: str) -> None:
    """Looped over, for its tangent has no batch; each sample must know what its inputs are."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x.exp_())
        ctx.y = x
        return x

    op = function("Exp", forward=forward, jvp=lambda ctx, t: t.mul_(ctx.y))
    for _ in range(2):
        check(program, lambda x: op.apply(x * 1), torch.exp)
