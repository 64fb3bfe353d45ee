"""The entry that ``check`` works on, from ``module:MyFunction`` and samples."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fxforms import adopt
from fxforms._tree import flatten
from opinfo_db.checks.contract import tensors_of
from opinfo_db.core import OpInfo, SampleInput

#: Double precision, so that finite differences can be told from a wrong derivative.
DTYPE = torch.float64
_WIDER = {torch.float32: DTYPE, torch.complex64: torch.complex128}

Samples: TypeAlias = Callable[[torch.device, torch.dtype, bool], Iterator[SampleInput]]


class TargetError(Exception):
    """What was asked for cannot be found, or there is no sample of it."""


def load_entry(path: str, expressions: Sequence[str]) -> OpInfo:
    """The entry of the Function or callable at ``path``, with its own samples or those given.

    A ``torch.autograd.Function`` is adopted, so that the rules it lacks are derived.

    Raises:
        TargetError: the import fails, the name is not there or not callable, or nothing gives
            samples.
    """
    op = _load(path)
    return OpInfo(path.partition(":")[2], op, _samples(path, op, expressions), dtypes=(DTYPE,))


def _load(path: str) -> Any:
    """The object at ``module:qualname``; modules in the current folder are found too."""
    module, _, name = path.partition(":")
    if not name:
        raise TargetError(f"{path}: write module:name, as in mypackage.functions:MyFunction.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        op = reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise TargetError(f"{path}: {type(error).__name__}: {error}") from error
    if not callable(op):
        raise TargetError(f"{path} is a {type(op).__name__}: neither a Function nor a callable.")
    return adopt(op) if isinstance(op, type) and issubclass(op, torch.autograd.Function) else op


def _samples(path: str, op: Any, expressions: Sequence[str]) -> Samples:
    """From the expressions if there are any, else from ``op.sample_inputs``."""
    if expressions:
        return _from_expressions(expressions)
    own = getattr(op, "sample_inputs", None)
    if own is None:
        raise TargetError(
            f"{path} has no sample_inputs(device, dtype, requires_grad). Add it, or give samples, "
            "as in --sample 'torch.randn(3)' or --sample '(torch.randn(3), 2)'."
        )

    def sample_inputs(
        device: torch.device, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[SampleInput]:
        yield from map(_as_sample, own(device, dtype, requires_grad))

    return sample_inputs


def _as_sample(value: Any) -> SampleInput:
    """A tuple is the list of arguments; anything else is the only one."""
    if isinstance(value, SampleInput):
        return value
    return SampleInput(value if isinstance(value, tuple) else (value,))


def _from_expressions(expressions: Sequence[str]) -> Samples:
    """The values of the expressions in double precision.

    If no tensor of a sample requires grad, then all do that can.
    """

    def sample_inputs(
        device: torch.device, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[SampleInput]:
        for expression in expressions:
            given = _as_sample(_value(expression))
            chosen = any(x.requires_grad for x in tensors_of(given))
            held, spec = flatten(given.args)
            args = spec.unflatten([_doubled(leaf, chosen) for leaf in held])
            yield _as_sample(args)

    return sample_inputs


def _value(expression: str) -> Any:
    """The value of an expression with ``torch`` in scope."""
    try:
        return eval(expression, {"torch": torch})
    except Exception as error:
        raise TargetError(f"--sample {expression!r}: {type(error).__name__}: {error}") from error


def _doubled(leaf: Any, chosen: bool) -> Any:
    """``leaf`` in double precision; it requires grad if it did, or if nothing was ``chosen``."""
    if not isinstance(leaf, Tensor):
        return leaf
    tensor = leaf.detach().to(_WIDER.get(leaf.dtype, leaf.dtype))
    can = tensor.is_floating_point() or tensor.is_complex()
    return tensor.requires_grad_(leaf.requires_grad or (can and not chosen))
