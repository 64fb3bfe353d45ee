"""The records of the database: immutable, lazy, and refusing what makes no sense."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch

import fxforms
import opinfo_db
from opinfo_db import ErrorInput, OpInfo, Rule, SampleInput, Tolerance, Waiver
from opinfo_db.core import EXACT, TOLERANCES, roll_values, vary_values, written_rules


def never(*args: Any) -> Any:
    raise AssertionError("making an entry must not run anything")


@pytest.mark.parametrize(
    "record",
    [
        SampleInput((1,)),
        ErrorInput(SampleInput(()), ValueError, "x"),
        Tolerance(0, 0),
        Waiver("vjp", "because"),
        OpInfo("never", never, never, never, error_inputs=never),
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_cannot_be_changed(record: Any) -> None:
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, None)


def test_mappings_inside_cannot_be_changed_either() -> None:
    given = {"dim": 1}
    sample = SampleInput((), given)
    given["dim"] = 2
    assert dict(sample.kwargs) == {"dim": 1}
    with pytest.raises(TypeError, match="does not support item assignment"):
        sample.kwargs["dim"] = 3  # type: ignore[index]


def test_names_are_loaded_when_used() -> None:
    code = "import opinfo_db.plugin, sys; print('torch' in sys.modules); opinfo_db.OpInfo; "
    slow = "torch.testing._internal.common_methods_invocations"
    code += f"print('torch' in sys.modules, {slow!r} in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True", "False"]
    with pytest.raises(AttributeError, match="no attribute 'OpInf'"):
        _ = opinfo_db.OpInf  # type: ignore[attr-defined]
    assert all(hasattr(opinfo_db, name) for name in opinfo_db.__all__)


def test_tolerance_of_the_entry_comes_first() -> None:
    own = Tolerance(1, 2)
    entry = OpInfo("x", never, never, tolerances={torch.float32: own})
    assert entry.tolerance(torch.float32) == own
    assert entry.tolerance(torch.float64) == TOLERANCES[torch.float64]
    assert entry.tolerance(torch.int64) == EXACT


def test_an_entry_without_any_oracle_is_refused() -> None:
    with pytest.raises(ValueError, match="Give a reference"):
        OpInfo("x", never, never, finite_differences=False)


def test_a_waiver_covers_what_it_names() -> None:
    waiver = Waiver("vjp", "why", frozenset({torch.float32}), frozenset({"sample1"}))
    assert waiver.covers("vjp", torch.float32, "sample1")
    assert not waiver.covers("jvp", torch.float32, "sample1")
    assert not waiver.covers("vjp", torch.float64, "sample1")
    assert not waiver.covers("vjp", torch.float32, "sample0")


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g


class Ours(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vjp(ctx: Any, g: Any) -> Any:
        return 2 * g


class WithJvp(Plain):
    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 2 * t


@pytest.mark.parametrize(
    ("op", "rules"),
    [
        (torch.sin, set()),
        (Plain, {Rule.BACKWARD}),
        (Ours, {Rule.BACKWARD, Rule.VMAP}),
        (WithJvp, {Rule.BACKWARD, Rule.JVP}),
    ],
)
def test_the_rules_that_were_written_are_found(op: Any, rules: set[Rule]) -> None:
    assert written_rules(op) == rules
    assert OpInfo("x", op, never).rules == rules


def test_a_function_is_called_by_apply() -> None:
    x = torch.ones(2, requires_grad=True)
    assert OpInfo("x", Plain, never).call(x).grad_fn is not None


@pytest.mark.parametrize("vary", [vary_values, roll_values])
def test_members_of_a_batch_differ_and_the_first_is_the_original(vary: Any) -> None:
    for x in (torch.rand(2, 3) + 1, torch.arange(4), torch.tensor([True, False])):
        assert torch.equal(vary(x, 0), x)
        assert not torch.equal(vary(x, 1), x)
        assert vary(x, 1).shape == x.shape


def test_rolled_members_have_another_order() -> None:
    x = torch.tensor([1.0, 5.0, 3.0])
    assert not torch.equal(roll_values(x, 1).argsort(), x.argsort())
    assert torch.equal(vary_values(x, 1).argsort(), x.argsort())
