"""What a captured graph computes, against autograd: plain, mapped, differentiated, compiled."""

from __future__ import annotations

import pytest
import torch
from capture_graphs import CASES, Make, assert_same, cotangents_for, make

import fxforms

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@each_case
def test_gradients(case: Make) -> None:
    outputs, inputs = make(case)
    backward = fxforms.capture_backward(outputs, inputs)
    for _ in range(2):
        cotangents = cotangents_for(outputs)
        wanted = torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph=True, allow_unused=True
        )
        assert_same(backward(cotangents), wanted)


@each_case
def test_mapped_over_cotangents(case: Make) -> None:
    outputs, inputs = make(case)
    gradients = torch.autograd.grad(
        outputs, inputs, cotangents_for(outputs), True, allow_unused=True
    )
    inputs = [x for x, g in zip(inputs, gradients) if g is not None]
    backward = fxforms.capture_backward(outputs, inputs)
    batches = [torch.randn(3, *y.shape, dtype=y.dtype) for y in outputs]
    with torch.no_grad():
        found = fxforms.vmap(backward)(batches)
    rows = [torch.autograd.grad(outputs, inputs, row, retain_graph=True) for row in zip(*batches)]
    assert_same(found, [torch.stack(x) for x in zip(*rows)])


@each_case
def test_differentiated_again(case: Make) -> None:
    outputs, inputs = make(case)
    cotangents = [y.requires_grad_() for y in cotangents_for(outputs)]
    found = fxforms.capture_backward(outputs, inputs)(cotangents)
    wanted = torch.autograd.grad(outputs, inputs, cotangents, create_graph=True, allow_unused=True)
    assert_same(found, wanted)
    weights = [None if x is None else torch.randn_like(x) for x in wanted]
    assert_same(
        second(found, weights, inputs, cotangents), second(wanted, weights, inputs, cotangents)
    )


def second(gradients, weights, inputs, cotangents):
    """The derivative of a weighted sum of the gradients."""
    pairs = [(x, w) for x, w in zip(gradients, weights) if x is not None and x.requires_grad]
    return torch.autograd.grad(
        [x for x, _ in pairs],
        [*inputs, *cotangents],
        [w for _, w in pairs],
        retain_graph=True,
        allow_unused=True,
    )
