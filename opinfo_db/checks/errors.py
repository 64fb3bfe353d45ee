"""A bad input gets the error it must, and the next call works."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fxforms._tree import flatten
from opinfo_db.checks.compare import Tally
from opinfo_db.checks.contract import Case, Check, CheckFailure, CheckResult, Source, samples_of
from opinfo_db.checks.flat import Problem, problem
from opinfo_db.checks.forward import compare_trees
from opinfo_db.checks.levels import state
from opinfo_db.checks.transforms import Transforms
from opinfo_db.core import Capability, ErrorInput


def _must_raise(where: str, call: Callable[[], Any], wanted: ErrorInput) -> None:
    """Fail unless ``call`` raises what ``wanted`` says."""
    try:
        result = call()
    except wanted.error as error:
        if not re.search(wanted.regex, str(error)):
            raise CheckFailure(
                f"{where}: the message of {type(error).__name__} is {str(error)!r}, which "
                f"does not match {wanted.regex!r}"
            ) from error
    except Exception as error:
        raise CheckFailure(
            f"{where}: {type(error).__name__}: {error}; expected {wanted.error.__name__}"
        ) from error
    else:
        raise CheckFailure(f"{where}: returned {result!r}; expected {wanted.error.__name__}")


def _bad_vjp(case: Case, wanted: ErrorInput, transforms: Transforms) -> Callable[[], Any] | None:
    """The bad call under ``vjp`` of its floating tensors, if it has any."""
    held, spec = flatten((wanted.sample.args, dict(wanted.sample.kwargs)))
    places = [i for i, x in enumerate(held) if isinstance(x, Tensor) and x.is_floating_point()]
    if not places or Capability.BACKWARD not in case.entry.supports:
        return None

    def inner(*primals: Tensor) -> Any:
        full = list(held)
        for place, primal in zip(places, primals, strict=True):
            full[place] = primal
        args, kwargs = spec.unflatten(full)
        return case.entry.call(*args, **kwargs)

    return lambda: transforms.vjp(inner, *(held[i].detach() for i in places))


def _good(case: Case) -> Problem:
    """The first sample of the entry, which must go on working."""
    first = next(samples_of(case.entry, case.dtype, case.device), None)
    if first is None:
        raise CheckFailure(f"{case.entry.name}: error inputs but no sample to try after them")
    return problem(replace(case, index=0, sample_name=first.name))


def run(case: Case, transforms: Transforms) -> CheckResult:
    """Make the bad call plainly and under ``vjp``; the good call before and after is the same."""
    wanted, good, tally = case.error_input(), _good(case), Tally(case.entry)
    before, value = state(), good.raw(*good.inputs)
    calls = {"call": lambda: case.entry.call(*wanted.sample.args, **wanted.sample.kwargs)}
    if (under_vjp := _bad_vjp(case, wanted, transforms)) is not None:
        calls["vjp"] = under_vjp
    for where, call in calls.items():
        _must_raise(where, call, wanted)
        tally.true(state() == before, f"{where}: the error leaves {state()}, before {before}")
        with torch.no_grad():
            compare_trees(tally, f"good call after {where}", good.raw(*good.inputs), value)
    return tally.result()


ERRORS = Check(
    "errors", "a bad input gets its error, and the next call works", run, source=Source.ERRORS
)
