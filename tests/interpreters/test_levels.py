"""Levels and interpreters: entering, lowering, and leaving whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
from custom import Cube
from state import modes

import fxforms
from fxforms import _substrate as substrate
from fxforms.functions.rules import FunctionRules
from fxforms.interpreters import VmapInfo, current_interpreter, grad_level, jvp_level, vmap_level
from fxforms.interpreters.grad import GradInterpreter
from fxforms.interpreters.jvp import JvpInterpreter
from fxforms.interpreters.vmap import VmapInterpreter

LEVELS: dict[str, Callable[[], AbstractContextManager[int]]] = {
    "grad": grad_level,
    "jvp": jvp_level,
    "vmap": lambda: vmap_level(3, "same"),
}
INTERPRETERS = {"grad": GradInterpreter, "jvp": JvpInterpreter, "vmap": VmapInterpreter}
kind = pytest.mark.parametrize("kind", LEVELS)


class Planned(Exception):
    pass


@kind
def test_a_level_is_numbered_by_its_depth(kind: str) -> None:
    with ExitStack() as stack:
        numbers = [stack.enter_context(LEVELS[kind]()) for _ in range(3)]
        assert numbers == [1, 2, 3]
        assert substrate.level_depth() == 3
    assert substrate.level_depth() == 0


@kind
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_leaving_restores_the_modes(kind: str, mode: Any) -> None:
    with mode():
        before = modes()
        with LEVELS[kind]():
            torch.set_grad_enabled(not torch.is_grad_enabled())
            torch.set_grad_enabled(not torch.is_grad_enabled())
        assert modes() == before
        with pytest.raises(Planned), LEVELS[kind]():
            raise Planned
        assert modes() == before


@kind
def test_the_interpreter_on_top(kind: str) -> None:
    with grad_level(), LEVELS[kind]() as level:
        interpreter = current_interpreter()
        assert type(interpreter) is INTERPRETERS[kind]
        assert interpreter.level == level == 2
        assert interpreter.transform == kind
        with interpreter.lower():
            assert substrate.level_depth() == 1
            assert isinstance(current_interpreter(), GradInterpreter)
        assert substrate.level_depth() == 2


@kind
def test_lowering_is_undone_by_an_exception(kind: str) -> None:
    with LEVELS[kind]():
        before = modes()
        with pytest.raises(Planned), current_interpreter().lower():
            raise Planned
        assert modes() == before


def test_what_a_vmap_level_tells() -> None:
    for randomness in ("error", "same", "different"):
        with vmap_level(7, randomness):
            interpreter = current_interpreter()
            assert isinstance(interpreter, VmapInterpreter)
            assert interpreter.info() == VmapInfo(batch_size=7, randomness=randomness)


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_recording_below_a_grad_level_needs_both_modes(outside: bool, inside: bool) -> None:
    """NOTE [grad mode crosses levels]."""
    with torch.set_grad_enabled(outside), grad_level():
        assert torch.is_grad_enabled()
        interpreter = current_interpreter()
        assert isinstance(interpreter, GradInterpreter)
        with interpreter.lower(inside):
            assert torch.is_grad_enabled() is (outside and inside)
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("rule", ["grad_rule", "jvp_rule", "vmap_rule"])
def test_a_fast_path_passes_a_level_without_its_tensors(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing batched, no tangent, nothing that requires grad: no rule runs."""

    def forbidden(*args: Any) -> None:
        raise AssertionError(rule)

    monkeypatch.setattr(FunctionRules, rule, forbidden)
    constant, x = torch.ones(2), torch.ones(3)
    transforms = {
        "grad_rule": (fxforms.grad, fxforms.jacrev),
        "jvp_rule": (fxforms.jacfwd,),
        "vmap_rule": (fxforms.vmap,),
    }[rule]
    for transform in transforms:
        assert transform(lambda x: Cube.apply(constant).sum() * x.sum())(x).shape[:1] == (3,)
        # Under vmap alone a derived rule is not needed either; plain autograd brings it back.
        x.requires_grad_(rule == "vmap_rule")
        with pytest.raises(AssertionError, match=rule):
            transform(lambda x: Cube.apply(x).sum())(x)


def test_a_body_under_vmap_alone_runs_at_its_own_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below differentiates: no rule is asked for, and the value is the same."""

    def forbidden(*args: Any) -> None:
        raise AssertionError("vmap_rule")

    x = torch.arange(6.0).view(2, 3)
    expected = (x**3).sum(1)
    monkeypatch.setattr(FunctionRules, "vmap_rule", forbidden)
    for mapped in (fxforms.vmap, lambda f: fxforms.vmap(lambda row: fxforms.vmap(f)(row).sum())):
        got = mapped(lambda x: Cube.apply(x).sum() if x.dim() else Cube.apply(x))(x)
        assert torch.equal(got, expected)
    slope = fxforms.vmap(fxforms.grad(lambda x: Cube.apply(x).sum()))(x)
    value, push = fxforms.vmap(lambda row: fxforms.jvp(Cube.apply, (row,), (2 * row,)))(x)
    torch.testing.assert_close((slope, value, push), (3 * x**2, x**3, 6 * x**3))
    with pytest.raises(AssertionError, match="vmap_rule"):
        fxforms.grad(lambda x: fxforms.vmap(Cube.apply)(x).sum())(x)


def test_a_combined_body_under_one_grad_level_is_not_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing below differentiates: the node runs the body with its own ctx."""

    class Square(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * g

    def forbidden(*args: Any) -> None:
        raise AssertionError("split")

    x = torch.tensor([1.0, 3.0])
    first = fxforms.grad(lambda x: Square.apply(x).sum())
    assert torch.equal(first(x), 2 * x)  # this call shows that nothing but an input is saved
    monkeypatch.setattr("fxforms.functions.call.enter_split", forbidden)
    assert torch.equal(first(x), 2 * x)
    with pytest.raises(AssertionError, match="split"):
        fxforms.grad(lambda x: first(x).sum())(x)


def test_torch_functionalize_has_no_interpreter() -> None:
    class Double(fxforms.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return 2 * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    with pytest.raises(fxforms.errors.RuleError, match="functionalize"):
        torch.func.functionalize(Double.apply)(torch.ones(2))
