"""An operation and a sample as a function from tensors to tensors.

Checks need to say "the third tensor", wherever in the arguments it sits, and "the outputs that
can be differentiated". :func:`problem` makes that of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fxforms._tree import flatten, leaves
from opinfo_db.checks.contract import Case, CheckFailure, oracle
from opinfo_db.core import OpInfo, SampleInput

Tensors: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fun:
    """A function of ``n_in`` tensors to ``n_out``, and which of them can be differentiated."""

    call: Callable[..., Tensors]
    n_in: int
    n_out: int
    diff_in: tuple[int, ...]
    diff_out: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A case as tensors: the inputs, the operation, and what it is checked against.

    ``plain`` is the reference if there is one, else the operation itself; the oracles run it
    under plain autograd only. ``raw`` and ``raw_plain`` return all leaves, non-tensors included.
    """

    entry: OpInfo
    inputs: Tensors
    op: Fun
    plain: Fun
    raw: Callable[..., Any]
    raw_plain: Callable[..., Any]


_SEED = 20


def _as_function_of_tensors(
    entry: OpInfo, call: Callable[..., Any], sample: SampleInput
) -> Callable[..., Any]:
    """``call`` on ``sample`` as a function of the tensors in it, the rest held fixed."""
    held, spec = flatten((sample.args, dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(held) if isinstance(leaf, Tensor)]
    held = [None if i in places else leaf for i, leaf in enumerate(held)]

    def function(*tensors: Tensor) -> Any:
        full = list(held)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        args, kwargs = spec.unflatten(full)
        if entry.random:
            torch.manual_seed(_SEED)
        return call(*args, **kwargs)

    return function


def tensor_leaves(tree: Any) -> Tensors:
    """The tensors in ``tree``."""
    return tuple(leaf for leaf in leaves(tree) if isinstance(leaf, Tensor))


def _outputs_only(function: Callable[..., Any]) -> Callable[..., Tensors]:
    """``function`` with only the tensors of what it returns."""
    return lambda *tensors: tensor_leaves(function(*tensors))


def tracked(inputs: Sequence[Tensor], which: Sequence[int]) -> list[Tensor]:
    """``inputs`` detached, those in ``which`` requiring grad."""
    return [x.detach().requires_grad_(i in which) for i, x in enumerate(inputs)]


def problem(case: Case) -> Problem:
    """The problem that ``case`` poses; runs ``plain`` once, to see its outputs."""
    sample = case.sample()
    found = tensor_leaves((sample.args, dict(sample.kwargs)))
    diff_in = tuple(i for i, x in enumerate(found) if x.requires_grad)
    reference = case.entry.reference
    raw = _as_function_of_tensors(case.entry, case.entry.call, sample)
    raw_plain = _as_function_of_tensors(case.entry, reference, sample) if reference else raw
    inputs = tuple(x.detach() for x in found)
    if reference:
        with oracle("the reference"):
            outputs = tensor_leaves(raw_plain(*tracked(inputs, diff_in)))
    else:
        outputs = tensor_leaves(raw_plain(*tracked(inputs, diff_in)))
    diff_out = tuple(i for i, y in enumerate(outputs) if y.requires_grad)
    sizes = (len(inputs), len(outputs), diff_in, diff_out)
    return Problem(
        case.entry,
        inputs,
        Fun(_outputs_only(raw), *sizes),
        Fun(_outputs_only(raw_plain), *sizes),
        raw,
        raw_plain,
    )


def require_derivatives(posed: Problem) -> None:
    """Fail unless some output depends differentiably on some input."""
    if not posed.plain.diff_in or not posed.plain.diff_out:
        raise CheckFailure(
            f"{posed.entry.name}: no output requires grad, so there is no derivative to check. "
            "Mark the differentiable inputs of the sample with requires_grad, or leave the "
            "derivatives out of supports."
        )


def random_like(tensors: Sequence[Tensor]) -> Tensors:
    """Normal random tensors of the same shapes and dtypes."""
    return tuple(torch.randn(t.shape, dtype=t.dtype, device=t.device) for t in tensors)


def pick(tensors: Sequence[Tensor], which: Sequence[int]) -> Tensors:
    """The tensors at the places ``which``."""
    return tuple(tensors[i] for i in which)


def replaced(
    tensors: Sequence[Tensor], which: Sequence[int], values: Sequence[Tensor]
) -> list[Tensor]:
    """``tensors`` with those at the places ``which`` replaced by ``values``."""
    full = list(tensors)
    for place, value in zip(which, values, strict=True):
        full[place] = value
    return full
