"""A program run step by step, as the engine would: nothing compiled, and autograd may follow."""

from __future__ import annotations

from typing import Any

import torch

from fxforms.staging.backward.formulas import run_formula
from fxforms.staging.backward.opaque_steps import RUN, differentiated_once, followed
from fxforms.staging.backward.steps import Kind, Program, Step


def run_plain(program: Program, values: list[Any]) -> list[Any]:
    """One pass."""
    sources = followed(values) if torch.is_grad_enabled() else []
    for step, dead in program.last_uses():
        perform(step, values)
        if sources and step.kind is Kind.UNPACK:
            (slot,) = step.results
            values[slot.place] = differentiated_once(values[slot.place], sources)
        release(dead, values)
    return program.results(values)


def perform(step: Step, values: list[Any]) -> None:
    """Run one step on ``values``, which gets its results."""
    args = step.given(values)
    user_code = RUN.get(step.kind)
    found = run_formula(step, args) if user_code is None else user_code(*args)
    for slot, value in zip(step.results, found):
        values[slot.place] = value


def release(dead: list[int], values: list[Any]) -> None:
    """Let go of values that nothing reads any more."""
    for place in dead:
        values[place] = None
