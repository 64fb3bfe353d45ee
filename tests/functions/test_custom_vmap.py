"""``custom_vmap``: the rule is used at every vmap level, derivatives come from it or the body."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, check

import fxforms
from fxforms.errors import RuleError, StructureError


def scaled_sine(seen: list[Any]) -> Any:
    """``k * x.sin()`` of a dict, whose rule notes what it is given."""

    @fxforms.custom_vmap
    def op(d: Any, k: Any = 2.0) -> Any:
        return {"y": k * d["x"].sin()}

    @op.def_vmap
    def rule(axis_size: int, in_batched: Any, d: Any, k: Any) -> Any:
        seen.append((axis_size, in_batched))
        return op(d, k), {"y": in_batched[0]["x"]}

    return op


@pytest.mark.parametrize("program", PROGRAMS)
def test_derivatives(program: str) -> None:
    seen: list[Any] = []
    op = scaled_sine(seen)
    check(program, lambda x: op({"x": x})["y"], lambda x: 2 * x.sin())


@pytest.mark.parametrize(
    "program",
    [
        *("vmap", "grad_vmap"),
        *(
            pytest.param(
                program,
                marks=pytest.mark.xfail(
                    strict=True, reason="a derivative inside the vmap runs the body, not the rule"
                ),
            )
            for program in ("vmap_grad", "vmap_jvp", "grad_vmap_grad", "vmap_grad_grad")
        ),
    ],
)
def test_the_rule_is_used(program: str) -> None:
    """JAX maps the derivative by the rule, too."""
    seen: list[Any] = []
    op = scaled_sine(seen)
    PROGRAMS[program](fxforms, lambda x: op({"x": x})["y"], vec(3))
    assert seen


def test_what_the_rule_is_given() -> None:
    seen: list[Any] = []
    op = scaled_sine(seen)
    x = vec(3, 4)
    result = fxforms.vmap(lambda x: op({"x": x}, k=torch.tensor(3.0))["y"], 1)(x)
    assert_close(result, 3 * x.T.sin())
    assert seen == [(4, ({"x": True}, False))]


def test_the_rule_may_differ_from_the_body() -> None:
    op = fxforms.custom_vmap(lambda x: x.sum())
    op.def_vmap(lambda size, batched, x: (10 * x.sum(1), True))
    x = vec(2, 3)
    assert_close(op(x[0]), x[0].sum())
    assert_close(fxforms.vmap(op)(x), 10 * x.sum(1))
    assert_close(fxforms.vmap(fxforms.vmap(op, 1))(vec(2, 3, 4)).shape, torch.Size([2, 4]))
    slope = fxforms.grad(lambda x: fxforms.vmap(op)(x).sum())(x)
    assert_close(slope, torch.full((2, 3), 10.0).double())


def test_unmapped_it_is_the_body() -> None:
    op = fxforms.custom_vmap(lambda x, y: x * y)  # no rule is needed
    x = vec(3).requires_grad_()
    assert_close(torch.autograd.grad(op(x, y=x).sum(), x)[0], 2 * x.detach())
    one, two = torch.ones(()).double(), torch.full((), 2.0).double()
    assert_close(fxforms.vmap(lambda x: x + op(one, two))(x), x + 2)


@pytest.mark.parametrize(
    ("rule", "kind", "message"),
    [
        (None, RuleError, r"mul .*def_vmap"),
        (lambda size, batched, x: x, StructureError, r"mul.*\(output, out_batched\)"),
        (lambda size, batched, x: (x, (True, True)), StructureError, r"mul.*out_batched"),
    ],
)
def test_faults(rule: Any, kind: Any, message: str) -> None:
    def mul(x: Tensor) -> Tensor:
        return x * 2

    op = fxforms.custom_vmap(mul)
    if rule is not None:
        op.def_vmap(rule)
    with pytest.raises(kind, match=message):
        fxforms.vmap(op)(vec(2, 3))
    assert_close(fxforms.grad(lambda x: op(x).sum())(vec(3)), torch.full((3,), 2.0).double())
