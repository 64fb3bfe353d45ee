"""Faults around decorators and the Functions of others.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

from typing import Any

import torch
from error_cases import BATCH, Messages, X
from forms_cases import (
    bare_jvp,
    bare_vjp,
    bare_vmap,
    capturing_rule,
    fault,
    loss,
    mapped_by,
    too_few_rules,
    with_jvp,
    with_vjp,
)

import fxforms


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
StructureError: square: bwd must return a tuple with one gradient for each of
the 1 differentiable argument(s), got a torch.float32 tensor of shape (3,).""",
        )

    def test_bwd_that_returns_too_few(self) -> None:
        self.check(
            lambda: fxforms.grad(loss(with_vjp(lambda x: (x**2, x), lambda x, ct: ())))(X),
            """\
StructureError: square: bwd must return a tuple with one gradient for each of
the 1 differentiable argument(s), got 0 of them.""",
        )

    def test_bwd_that_returns_too_many(self) -> None:
        self.check(
            lambda: fxforms.grad(loss(with_vjp(lambda x: (x**2, x), lambda x, ct: (ct, ct))))(X),
            """\
StructureError: square: bwd must return a tuple with one gradient for each of
the 1 differentiable argument(s), got 2 of them.""",
        )

    def test_too_few_rules(self) -> None:
        self.check(
            too_few_rules,
            """\
ArgumentError: product.defjvps takes 2 rules, one for each differentiable
argument (None where there is no derivative), got 1.""",
        )

    def test_nondiff_argnums_out_of_range(self) -> None:
        self.check(
            lambda: fxforms.custom_vjp(lambda x: x, nondiff_argnums=(5,)),
            """\
ArgumentError: <lambda>: nondiff_argnums=(5,) must lie in [-1, 1), for there are
1 arguments.""",
        )

    def test_a_rule_that_closes_over_a_tensor_of_a_transform(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: capturing_rule(x.sin())(x).sum())(X),
            """\
UnsupportedError: scaled closes over a tensor of a transform (level 1, shape
(3,)), which its rules do not see. Pass the tensor to it as an argument.""",
        )

    def test_a_gradient_by_what_a_body_closes_over(self) -> None:
        weight = torch.ones(3, requires_grad=True)
        self.check(
            lambda: capturing_rule(weight)(X).sum().backward(),
            """\
UnsupportedError: scaled uses a tensor of shape (3,) that it closes over, and
its rules give no derivative by it. Pass the tensor to it as an argument; where
it is meant as a constant, write tensor.detach() in the function.""",
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
    def test_adopt_of_the_base_class(self) -> None:
        self.check(
            lambda: fxforms.adopt(torch.autograd.Function),
            """\
TypeError: adopt expects a subclass of torch.autograd.Function, not that class
itself.""",
        )

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

    def test_a_transform_inside_save_on_cpu(self) -> None:
        def offloaded() -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu():
                return fxforms.grad(lambda x: x.sin().sum())(X.clone().requires_grad_())

        self.check(
            offloaded,
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


class TestFaults(Messages):
    def test_fwd_that_returns_no_pair(self) -> None:
        self.check(
            fault("fwd returns no pair"),
            """\
StructureError: square: fwd must return the pair (output, residuals), got a
torch.float32 tensor of shape (3,).""",
        )

    def test_a_jvp_rule_that_returns_no_pair(self) -> None:
        self.check(
            fault("jvp rule returns no pair"),
            """\
StructureError: square: the jvp rule must return the pair (output, tangent), got
a torch.float32 tensor of shape (3,).""",
        )

    def test_a_tangent_of_another_shape_in_reverse_mode(self) -> None:
        self.check(
            fault("a tangent of another shape in reverse mode"),
            """\
GradientError: square.jvp, transposed for reverse mode, returned as tangent of
output 0 a torch.float32 tensor of shape (2,), but the output has shape (3,).
Return a tensor of its shape, or None where it is zero.""",
        )

    def test_too_few_arguments(self) -> None:
        self.check(
            fault("too few arguments"),
            """TypeError: square: missing a required argument: 'x'; it takes (x).""",
        )

    def test_a_number(self) -> None:
        self.check(fault("a number"), """TypeError: custom_vjp expects a function, got 3.""")

    def test_a_function_that_holds_a_tensor_of_a_transform(self) -> None:
        call = fxforms.custom_vjp(lambda f, x: f(x), nondiff_argnums=(0,))
        call.defvjp(lambda f, x: (f(x), x), lambda f, x, ct: (ct,))
        self.check(
            lambda: fxforms.grad(lambda x: call(lambda y: y * x.sin(), x).sum())(X),
            """\
UnsupportedError: <lambda> was given a function that holds a tensor of a
transform (level 1, shape (3,)), which its rules do not see. Pass the tensor to
it as an argument of its own.""",
        )
