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
