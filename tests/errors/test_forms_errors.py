"""Faults around derived rules, ``ctx`` in ``forward``, containers, decorators and adoption.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

import textwrap
import warnings
from typing import Any

import pytest
import torch
from error_cases import BATCH, Messages, X
from forms_cases import (
    bare_jvp,
    bare_vjp,
    bare_vmap,
    fault,
    function,
    in_place_sine,
    layer,
    listed_sine,
    loss,
    mapped_by,
    numpy_sine,
    pair,
    with_jvp,
    with_vjp,
)
from torch.utils.checkpoint import checkpoint

import fxforms
from fxforms.errors import FxformsError


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

    @pytest.mark.xfail(
        strict=True, reason="with ctx in forward it says that reverse mode needs one"
    )
    def test_no_derivative_rule_in_forward_mode(self) -> None:
        op = function("Value", forward=lambda ctx, x: x * 2)
        error = self.check_class(lambda: fxforms.jvp(op.apply, (X,), (X,)), FxformsError)
        assert "forward mode" in str(error)

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

    @pytest.mark.xfail(strict=True, reason="torch's 'Cannot access data pointer'")
    def test_a_residual_by_numpy(self) -> None:
        self.check_class(lambda: fxforms.hessian(loss(numpy_sine()))(X), FxformsError)

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

    @pytest.mark.xfail(strict=True, reason="only the number of tensors is compared")
    def test_a_gradient_with_other_keys(self) -> None:
        self.check_class(lambda: fxforms.grad(layer({"weights": X, "bias": X}))(X), FxformsError)

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


class TestDecorators(Messages):
    def test_called_before_its_rule(self) -> None:
        self.check(
            lambda: bare_vjp()(X), """RuleError: square was called before defvjp gave it a rule."""
        )

    def test_called_before_its_jvp_rule(self) -> None:
        self.check(
            lambda: bare_jvp()(X), """RuleError: square was called before defjvp gave it a rule."""
        )

    def test_mapped_before_its_rule(self) -> None:
        self.check(
            lambda: fxforms.vmap(bare_vmap())(BATCH),
            """RuleError: square was mapped before def_vmap gave it a rule.""",
        )

    def test_bwd_that_returns_no_tuple(self) -> None:
        self.check(
            lambda: fxforms.grad(loss(with_vjp(lambda x: (x**2, x), lambda x, ct: 2 * x * ct)))(X),
            """\
StructureError: square: bwd must return the tuple of gradients, got tensor([2.,
4., 6.]).""",
        )

    def test_a_gradient_of_another_shape(self) -> None:
        self.check(
            lambda: fxforms.grad(loss(with_vjp(lambda x: (x**2, x), lambda x, ct: (ct[:2],))))(X),
            """\
GradientError: grad(<lambda>): Function squareBackward returned an invalid
gradient at index 0 - got [2] but expected shape compatible with [3]. The
gradient of an input must have the shape of that input, or broadcast from it;
return None for an input that has no gradient.""",
        )

    def test_a_tangent_of_another_shape(self) -> None:
        rule = lambda primals, tangents: (primals[0] ** 2, tangents[0][:2])  # noqa: E731
        self.check(
            lambda: fxforms.jvp(with_jvp(rule), (X,), (X,)),
            """\
GradientError: square.jvp (level 1) returned as tangent of output 0 a
torch.float32 tensor of shape (2,), but the output is a torch.float32 tensor of
shape (3,). Return a tensor of its shape, or None where it is zero.""",
        )

    def test_a_transpose_of_another_shape(self) -> None:
        head = fxforms.linear_function(lambda x: x[:2], lambda ct: ct)
        self.check(
            lambda: fxforms.grad(loss(head))(X),
            """\
GradientError: grad(<lambda>): Function <lambda>Backward returned an invalid
gradient at index 0 - got [2] but expected shape compatible with [3]. The
gradient of an input must have the shape of that input, or broadcast from it;
return None for an input that has no gradient.""",
        )

    def test_a_vmap_rule_that_returns_no_pair(self) -> None:
        self.check(
            lambda: fxforms.vmap(mapped_by(lambda size, batched, x: x))(BATCH),
            """\
StructureError: square: the vmap rule must return (output, out_batched), got a
torch.float32 tensor of shape (2, 3).""",
        )

    def test_a_vmap_rule_with_marks_of_another_structure(self) -> None:
        rule = lambda size, batched, x: (x, (True, True))  # noqa: E731
        self.check(
            lambda: fxforms.vmap(mapped_by(rule))(BATCH),
            """\
StructureError: square.def_vmap: out_batched=(True, True) does not match the
structure it describes, a single leaf. Give one entry for all of it, or a tree
that agrees with its top.""",
        )


class TestAdoption(Messages):
    def test_adopt_of_something_else(self) -> None:
        self.check(
            lambda: fxforms.adopt(torch.nn.Linear),
            """\
TypeError: adopt expects a subclass of torch.autograd.Function, got <class
'torch.nn.modules.linear.Linear'>.""",
        )

    def test_adopt_of_an_instance(self) -> None:
        self.check(
            lambda: fxforms.adopt(3),
            """TypeError: adopt expects a subclass of torch.autograd.Function, got 3.""",
        )

    def test_a_transform_inside_a_checkpoint_outside(self) -> None:
        slope = fxforms.grad(lambda x: x.sin().sum())
        self.check(
            lambda: checkpoint(slope, X.clone().requires_grad_(), use_reentrant=False),
            """\
UnsupportedError: Saved-tensor hooks (saved_tensors_hooks, save_on_cpu) run
without recording, so the derivative that an outer level takes through what they
return would be a silent zero. Use them around a first derivative only.""",
        )

    def test_theirs_once_differentiable(self) -> None:
        class Theirs(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x**2

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, g: Any) -> Any:
                return 2 * ctx.saved_tensors[0] * g

        self.check(
            lambda: fxforms.hessian(loss(fxforms.adopt(Theirs).apply))(X),
            """\
GradientError: Theirs.backward is marked once_differentiable and was
differentiated a second time. Write it in differentiable torch operations and
drop the decorator.""",
        )


NAMED = {
    "fwd returns no pair": "square",
    "bwd returns too few": "square",
    "bwd returns too many": "square",
    "jvp rule returns no pair": "square",
    "a tangent of another shape in reverse mode": "square",
    "too few arguments": "square",
    "too few rules": "defjvps",
    "nondiff_argnums out of range": "nondiff_argnums",
    "a number": "custom_vjp",
    "adopt of the base class": "adopt",
}


@pytest.mark.xfail(strict=True, reason="no error, or one of Python or torch that names nothing")
@pytest.mark.parametrize("case", NAMED)
def test_a_fault_is_named(case: str) -> None:
    with pytest.raises((FxformsError, TypeError), match=NAMED[case]):
        fault(case)()
