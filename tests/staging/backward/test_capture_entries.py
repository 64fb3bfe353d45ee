"""Captured and compiled passes of every custom Function of the database, against autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capture_graphs import assert_same
from compilers import Counter

import fxforms
from fxforms._tree import leaves
from fxforms.errors import RuleError
from opinfo_db.core import OpInfo
from opinfo_db.entries import ENTRIES

Pass = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]


def recorded(entry: OpInfo, sample: Any) -> Pass:
    """Outputs, inputs and cotangents of one sample."""
    inputs = tensors_that_require_grad((sample.args, sample.kwargs))
    torch.manual_seed(1)
    outputs = tensors_that_require_grad(entry.call(*sample.args, **sample.kwargs))
    return outputs, inputs, [torch.randn_like(y) for y in outputs]


def tensors_that_require_grad(tree: Any) -> list[torch.Tensor]:
    return [x for x in leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad]


def differentiated() -> list[OpInfo]:
    """The entries of real numbers."""
    return [entry for entry in ENTRIES if torch.double in entry.dtypes]


def eager(outputs: Any, inputs: Any, cotangents: Any) -> Any:
    """The gradients by plain autograd."""
    options = {"retain_graph": True, "allow_unused": True}
    return torch.autograd.grad(outputs, inputs, cotangents, **options)


def in_block(*arguments: Any) -> Any:
    """The same on a compiled program."""
    with fxforms.compiled_backward(Counter()):
        return eager(*arguments)


def or_error(backward: Any, *args: Any) -> Any:
    """What a pass returns, with a seed of its own; None if its Function has no derivative."""
    torch.manual_seed(2)
    try:
        return backward(*args)
    except RuleError:
        return None


def with_zeros(gradients: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """``gradients`` with zeros where a Function leaves one out."""
    return [0 * x.detach() if g is None else g.detach() for g, x in zip(gradients, inputs)]


@pytest.mark.parametrize("entry", differentiated(), ids=lambda entry: entry.name)
def test_gradients(entry: OpInfo) -> None:
    torch.manual_seed(0)
    for sample in list(entry.sample_inputs(torch.device("cpu"), torch.double, True))[:2]:
        outputs, inputs, cotangents = recorded(entry, sample)
        if not outputs:
            continue
        wanted = or_error(eager, outputs, inputs, cotangents)
        found = or_error(fxforms.capture_backward(outputs, inputs), cotangents)
        compiled = or_error(in_block, outputs, inputs, cotangents)
        if wanted is None:
            assert found is compiled is None
        else:
            assert_same(with_zeros(found, inputs), with_zeros(wanted, inputs))
            assert_same(compiled, wanted)
