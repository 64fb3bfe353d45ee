"""Every fault a user can make: the message, and that the next call works.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

import torch
from error_cases import (
    BATCH,
    Bare,
    Cube,
    Messages,
    Once,
    X,
    both_names,
    both_vmaps,
    keyword_only,
    mapping,
    tangents,
    wrong,
)

import fxforms


class TestFunctions(Messages):
    def test_no_backward(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: Bare.apply(x).sum())(X),
            """\
RuleError: Bare has neither a backward nor a jvp rule, and reverse mode (grad,
vjp, jacrev, .backward()) needs one. Add a backward or a jvp staticmethod;
either is derived from the other.""",
        )

    def test_no_backward_in_plain_autograd(self) -> None:
        self.check(
            lambda: Bare.apply(X.clone().requires_grad_()).sum().backward(),
            """\
RuleError: Bare has neither a backward nor a jvp rule, and reverse mode (grad,
vjp, jacrev, .backward()) needs one. Add a backward or a jvp staticmethod;
either is derived from the other.""",
        )

    def test_no_jvp(self) -> None:
        self.check(
            lambda: fxforms.jvp(Bare.apply, (X,), (X,)),
            """\
RuleError: Bare has neither a backward nor a jvp rule, and forward mode (jvp,
jacfwd) needs one. Add a backward or a jvp staticmethod; either is derived from
the other.""",
        )

    def test_too_few_gradients(self) -> None:
        self.check(
            lambda: fxforms.grad(wrong(lambda g: g))(X, X),
            """\
GradientError: Dot.backward returned 1 gradient for 2 inputs (weight, bias).
Return one for each input of forward, None for one that has no gradient.""",
        )

    def test_too_few_gradients_in_plain_autograd(self) -> None:
        self.check(
            lambda: wrong(lambda g: g)(X.clone().requires_grad_(), X).backward(),
            """\
GradientError: Dot.backward returned 1 gradient for 2 inputs (weight, bias).
Return one for each input of forward, None for one that has no gradient.""",
        )

    def test_too_few_gradients_of_a_mapped_function(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: fxforms.vmap(wrong(lambda g: g))(x, x).sum())(BATCH),
            """\
GradientError: Dot.backward returned 1 gradient for 2 inputs (weight, bias).
Return one for each input of forward, None for one that has no gradient.""",
        )

    def test_too_many_gradients(self) -> None:
        self.check(
            lambda: fxforms.grad(wrong(lambda g: (g, g, g)))(X, X),
            """\
GradientError: Dot.backward returned 3 gradients for 2 inputs (weight, bias).
Return one for each input of forward, None for one that has no gradient.""",
        )

    def test_gradient_of_another_shape(self) -> None:
        self.check(
            lambda: fxforms.grad(wrong(lambda g: (g[:2], None)))(X, X),
            """\
GradientError: grad(<lambda>): Function DotBackward returned an invalid gradient
at index 0 - got [2] but expected shape compatible with [3]. The gradient of an
input must have the shape of that input, or broadcast from it; return None for
an input that has no gradient.""",
        )

    def test_gradient_of_another_shape_under_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(fxforms.grad(wrong(lambda g: (g[:2], None))))(BATCH, BATCH),
            """\
GradientError: grad(<lambda>): Function DotBackward returned an invalid gradient
at index 0 - got [2] but expected shape compatible with [3]. The gradient of an
input must have the shape of that input, or broadcast from it; return None for
an input that has no gradient.""",
        )

    def test_gradient_of_another_shape_of_a_mapped_function(self) -> None:
        self.check(
            lambda: fxforms.grad(
                lambda x: fxforms.vmap(wrong(lambda g: (g[:2], None)))(x, x).sum()
            )(BATCH),
            """\
GradientError: grad(<lambda>): Function DotBackward returned an invalid gradient
at index 0 - got [2, 2] but expected shape compatible with [2, 3]. The gradient
of an input must have the shape of that input, or broadcast from it; return None
for an input that has no gradient.""",
        )

    def test_gradient_that_is_a_number(self) -> None:
        self.check_class(
            lambda: fxforms.grad(wrong(lambda g: (2.0, None)))(X, X), fxforms.errors.GradientError
        )

    def test_tangents_too_few(self) -> None:
        self.check(
            lambda: fxforms.jvp(tangents(lambda t: (t, t, t)), (X,), (X,)),
            """\
GradientError: Same.jvp: the tangent for the output has structure (*, *, *), but
the output has a single leaf. Return one of the same structure, or None for all
of it.""",
        )

    def test_tangent_of_another_shape(self) -> None:
        self.check(
            lambda: fxforms.jvp(tangents(lambda t: t[:2]), (X,), (X,)),
            """\
GradientError: Same.jvp (level 1) returned as tangent of output 0 a
torch.float32 tensor of shape (2,), but the output is a torch.float32 tensor of
shape (3,). Return a tensor of its shape, or None where it is zero.""",
        )

    def test_tangent_that_is_a_number(self) -> None:
        self.check_class(
            lambda: fxforms.jvp(tangents(lambda t: 2.0), (X,), (X,)), fxforms.errors.GradientError
        )

    def test_vmap_rule_without_out_dims(self) -> None:
        self.check(
            lambda: fxforms.vmap(mapping(lambda x, d: x))(BATCH),
            """\
RuleError: Mapped.vmap (level 1) must return the pair (output, out_dims), got a
torch.float32 tensor of shape (2, 3).""",
        )

    def test_vmap_rule_with_a_wrong_out_dim(self) -> None:
        self.check(
            lambda: fxforms.vmap(mapping(lambda x, d: (x * 1, 1)))(BATCH),
            """\
RuleError: Mapped.vmap (level 1) gave out_dim 1 for an output of shape (2, 3),
but the batch size is 2. out_dims names the dim that holds the batch, or is None
for an output without one.""",
        )

    def test_vmap_rule_with_out_dims_of_another_structure(self) -> None:
        self.check(
            lambda: fxforms.vmap(mapping(lambda x, d: (x, (0, 0))))(BATCH),
            """\
StructureError: Mapped.vmap: out_dims=(0, 0) does not match the structure it
describes, a single leaf. Give one entry for all of it, or a tree that agrees
with its top.""",
        )

    def test_wrong_number_of_operands(self) -> None:
        self.check(
            lambda: Cube.apply(X, X),
            """\
TypeError: Cube.apply: too many positional arguments; forward takes (x:
'Tensor') -> 'Tensor'.""",
        )

    def test_unknown_keyword(self) -> None:
        self.check(
            lambda: Cube.apply(X, factor=2),
            """\
TypeError: Cube.apply: got an unexpected keyword argument 'factor'; forward
takes (x: 'Tensor') -> 'Tensor'.""",
        )

    def test_custom_function_call_of_something_else(self) -> None:
        self.check(
            lambda: fxforms.custom_function_call(print, X),
            """\
TypeError: custom_function_call expects a subclass of fxforms.Function, got
<built-in function print>. A plain torch.autograd.Function is called by its own
apply.""",
        )

    def test_second_derivative_of_once_differentiable(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: fxforms.grad(lambda y: Once.apply(y).sum())(x).sum())(X),
            """\
GradientError: Once.backward is marked once_differentiable and was
differentiated a second time. Write it in differentiable torch operations and
drop the decorator.""",
        )

    def test_two_names_of_one_rule(self) -> None:
        self.check(
            lambda: both_names(),
            """\
RuleError: Twice defines both backward and vjp, which are two names of one rule.
Keep one.""",
        )

    def test_two_vmap_rules(self) -> None:
        self.check(
            lambda: both_vmaps(),
            """\
RuleError: Twice has generate_vmap_rule=True and a vmap rule of its own. Keep
one.""",
        )

    def test_keyword_only_operand(self) -> None:
        self.check(
            lambda: keyword_only(),
            """\
RuleError: Keyword.forward needs the keyword-only parameter 'factor'. The
operands of a Function are positional: drop the '*' (a caller may still name
it).""",
        )

    def test_functionalize_of_torch(self) -> None:
        self.check(
            lambda: torch.func.functionalize(Cube.apply)(X),
            """\
RuleError: A custom Function was called inside torch.func.functionalize (level
1), which has no rule for one. Call the Function outside of it.""",
        )
