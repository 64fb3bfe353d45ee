"""Faults around derived rules, ``ctx`` in ``forward`` and containers.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

import textwrap
import warnings

import pytest
from error_cases import BATCH, Messages, X
from forms_cases import (
    function,
    in_place_sine,
    layer,
    listed_sine,
    loss,
    numpy_sine,
    pair,
)

import fxforms


class TestDerivedRules(Messages):
    def test_no_derivative_rule_in_reverse_mode(self) -> None:
        op = function("Value", forward=lambda ctx, x: x * 2)
        self.check(
            lambda: fxforms.grad(loss(op.apply))(X),
            """\
RuleError: Value has neither a backward nor a jvp rule, and reverse mode (grad,
vjp, jacrev, .backward()) needs one. Add a backward or a jvp staticmethod;
either is derived from the other.""",
        )

    def test_no_derivative_rule_in_forward_mode(self) -> None:
        op = function("Value", forward=lambda ctx, x: x * 2)
        self.check(
            lambda: fxforms.jvp(op.apply, (X,), (X,)),
            """\
RuleError: Value has neither a backward nor a jvp rule, and forward mode (jvp,
jacfwd) needs one. Add a backward or a jvp staticmethod; either is derived from
the other.""",
        )

    def test_no_derivative_rule_in_forward_mode_twice(self) -> None:
        op = function("Value", forward=lambda ctx, x: x * 2)
        self.check(
            lambda: fxforms.jacfwd(fxforms.jacfwd(op.apply))(X),
            """\
RuleError: Value has neither a backward nor a jvp rule, and forward mode (jvp,
jacfwd) needs one. Add a backward or a jvp staticmethod; either is derived from
the other.""",
        )

    def test_a_vmap_method_that_is_none(self) -> None:
        self.check(
            lambda: numpy_sine(vmap_method="lop"),
            """\
RuleError: NumpySine has vmap_method='lop'; it must be one of 'derive', 'loop',
'error'.""",
        )

    def test_a_vmap_rule_that_is_not_to_be_derived(self) -> None:
        self.check(
            lambda: fxforms.vmap(numpy_sine(vmap_method="error"))(BATCH),
            """\
RuleError: NumpySine has no vmap rule and vmap_method = "error". Add vmap(info,
in_dims, *args), or drop vmap_method to have the rule derived.""",
        )

    @pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
    def test_an_empty_batch(self) -> None:
        self.check(
            lambda: fxforms.vmap(numpy_sine())(BATCH[:0]),
            """\
RuleError: NumpySine cannot be mapped over a batch, and a loop over a batch of
size 0 does not tell the shape of its output. Give it a vmap rule, or skip the
empty batch.""",
        )

    def test_the_warning_of_a_loop(self) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            fxforms.vmap(numpy_sine())(BATCH)
        texts = [str(w.message) for w in seen if w.category is fxforms.UnmappableWarning]
        self.assertExpectedInline(
            textwrap.fill(texts[0], 80),
            """\
NumpySine cannot be mapped over a batch (Cannot access data pointer of Tensor
that doesn't have storage), so vmap calls it once for each sample. Give it a
vmap rule to make it fast, or vmap_method = "loop" to accept the loop.""",
        )


class TestResiduals(Messages):
    def test_a_residual_that_left_torch(self) -> None:
        self.check(
            lambda: fxforms.hessian(loss(listed_sine()))(X),
            """\
GradientError: ListedSine: a second derivative needs the derivative of what
forward saved for backward (residuals of shape (3,)), and forward leaves torch
(NumPy, .item()) where it computes them. Save only inputs and outputs, or
compute the residual in torch.""",
        )

    def test_a_residual_of_an_overwritten_input(self) -> None:
        self.check(
            lambda: fxforms.hessian(loss(in_place_sine))(X),
            """\
GradientError: SineInPlace: a second derivative needs the derivative of what
forward saved for backward, and forward has overwritten its input. Save only
inputs and outputs, or do not change the input in place.""",
        )

    def test_a_residual_by_numpy(self) -> None:
        self.check(
            lambda: fxforms.hessian(loss(numpy_sine()))(X),
            """\
GradientError: NumpySine: a second derivative needs the derivative of what
forward saved for backward (residuals of shape (3,)), and forward leaves torch
(NumPy, .item()) where it computes them. Save only inputs and outputs, or
compute the residual in torch.""",
        )

    def test_a_number_out_of_torch(self) -> None:
        op = function(
            "Total",
            forward=lambda ctx, x: setattr(ctx, "total", x.sum().item()) or x * ctx.total,
            backward=lambda ctx, g: g * ctx.total,
        )
        self.check(
            lambda: fxforms.hessian(loss(op.apply))(X),
            """\
GradientError: Total: a second derivative needs the derivative of what forward
kept on ctx for backward, and forward took it out of torch (NumPy, .item()), so
that there are no residuals to differentiate. Keep tensors, computed in torch.""",
        )

    def test_a_tensor_out_of_sight(self) -> None:
        op = function(
            "Hidden",
            forward=lambda ctx, x: setattr(ctx, "kept", {x.cos()}) or x.sin(),
            backward=lambda ctx, g: g * next(iter(ctx.kept)),
        )
        self.check(
            lambda: fxforms.hessian(loss(op.apply))(X),
            """\
GradientError: Hidden: a second derivative needs the derivative of a tensor that
forward keeps in ctx.kept, inside an object, a set or a function, where no level
sees it. Save it with ctx.save_for_backward, or in a dict, list or tuple on ctx.""",
        )

    def test_a_residual_that_is_another_the_second_time(self) -> None:
        noise = iter([1.0, 2.0, 3.0])
        op = function(
            "Noisy",
            forward=lambda ctx, x: ctx.save_for_backward(x * next(noise)) or x**2,
            backward=lambda ctx, g: g * ctx.saved_tensors[0],
        )
        self.check(
            lambda: fxforms.hessian(loss(op.apply))(X),
            """\
GradientError: Noisy: for a second derivative forward runs again, and what it
saved for backward (a residual of shape (3,)) is not the same then. Draw random
numbers from torch's default generator, or pass them in.""",
        )

    def test_a_keyword_only_parameter(self) -> None:
        op = function("Scale", forward=lambda ctx, x, *, factor=1.0: x * factor)
        self.check(
            lambda: op.apply(X, factor=2.0),
            """\
TypeError: Scale.apply was given the keyword-only parameter 'factor' of forward.
The operands of a Function are positional: drop the '*' (a caller may still name
it).""",
        )

    def test_a_keyword_that_forward_lacks(self) -> None:
        op = function("Scale", forward=lambda ctx, x, k=2: x * k)
        self.check(
            lambda: op.apply(X, factor=3),
            """\
TypeError: Scale.apply: got an unexpected keyword argument 'factor'; forward
takes (x, k=2) after ctx. Without a setup_context, forward's first parameter is
ctx. Add setup_context(ctx, inputs, output), or write forward(ctx, ...).""",
        )

    def test_gradients_of_a_default_that_was_not_given(self) -> None:
        op = function("Scale", forward=lambda ctx, x, k=2: x * k, backward=lambda ctx, g: (g, g))
        self.check(
            lambda: fxforms.grad(loss(op.apply))(X),
            """\
GradientError: Scale.backward returned 2 gradients for 1 input (x). Return one
for each input of forward, None for one that has no gradient.""",
        )


class TestContainers(Messages):
    def test_a_gradient_with_too_few_tensors(self) -> None:
        self.check(
            lambda: fxforms.grad(layer({"weight": X}))(X),
            """\
GradientError: Layer.backward: the gradient for params has structure {'weight':
*}, but params has {'weight': *, 'bias': *}. Return one of the same structure,
or None for all of it.""",
        )

    def test_a_gradient_that_is_no_container(self) -> None:
        self.check(
            lambda: fxforms.grad(layer(X))(X),
            """\
GradientError: Layer.backward: the gradient for params has structure a single
leaf, but params has {'weight': *, 'bias': *}. Return one of the same structure,
or None for all of it.""",
        )

    def test_a_gradient_with_other_keys(self) -> None:
        self.check(
            lambda: fxforms.grad(layer({"weights": X, "bias": X}))(X),
            """\
GradientError: Layer.backward: the gradient for params has structure {'weights':
*, 'bias': *}, but params has {'weight': *, 'bias': *}. Return one of the same
structure, or None for all of it.""",
        )

    def test_a_tangent_with_too_few_tensors(self) -> None:
        self.check(
            lambda: fxforms.jvp(pair({"first": X}), (X,), (X,)),
            """\
GradientError: Pair.jvp: the tangent for the output has structure {'first': *},
but the output has {'first': *, 'second': *}. Return one of the same structure,
or None for all of it.""",
        )

    def test_out_dims_of_another_structure(self) -> None:
        self.check(
            lambda: fxforms.vmap(pair(out_dims={"first": 0}))(BATCH),
            """\
StructureError: Pair.vmap: out_dims={'first': 0} does not match the structure it
describes, {'first': *, 'second': *}. Give one entry for all of it, or a tree
that agrees with its top.""",
        )

    def test_too_few_gradients(self) -> None:
        op = function(
            "Layer",
            forward=lambda ctx, params, x: params["w"] * x,
            backward=lambda ctx, g: {"w": g},
        )
        self.check(
            lambda: fxforms.grad(lambda w: op.apply({"w": w}, X).sum())(X),
            """\
GradientError: Layer.backward returned 1 gradient for 2 inputs (params, x).
Return one for each input of forward, None for one that has no gradient.""",
        )
