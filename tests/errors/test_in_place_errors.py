"""Every fault a user can make: the message, and that the next call works.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

from error_cases import BATCH, CAPTURED, Adding, Messages, X, adding, setting

import fxforms


class TestInPlace(Messages):
    def test_captured_by_grad(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: adding(CAPTURED)(x).sum())(X),
            """\
MutationError: grad(<lambda>): add_ would change a captured tensor in place. A
derivative cannot pass through such a change. Give the tensor to the function as
an argument, or clone it inside the function.""",
        )

    def test_captured_by_jvp(self) -> None:
        self.check(
            lambda: fxforms.jvp(adding(CAPTURED), (X,), (X,)),
            """\
MutationError: jvp(<lambda>): add_ would change a captured tensor in place. A
derivative cannot pass through such a change. Give the tensor to the function as
an argument, or clone it inside the function.""",
        )

    def test_captured_by_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(adding(CAPTURED))(BATCH),
            """\
MutationError: vmap(<lambda>): output with shape [3] doesn't match the broadcast
shape [2, 3]. Under vmap only a tensor that has the batch can be changed in
place by one that has. A tensor captured from outside, or made inside by a
factory such as torch.zeros, has none: map over it, or make it from a mapped
tensor (x.new_zeros, x.clone).""",
        )

    def test_item_of_captured_by_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(setting(CAPTURED))(BATCH),
            """\
MutationError: vmap(body): Under vmap only a tensor that has the batch can be
changed in place by one that has. A tensor captured from outside, or made inside
by a factory such as torch.zeros, has none: map over it, or make it from a
mapped tensor (x.new_zeros, x.clone).""",
        )

    def test_captured_by_a_function_under_grad(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: Adding.apply(CAPTURED, x).sum())(X),
            """\
RuleError: Adding changed a captured tensor of shape (3,) in place under grad
(level 1), and its gradient would be lost. Pass the tensor to the transformed
function as an argument, or clone it first.""",
        )

    def test_captured_by_a_function_under_jvp(self) -> None:
        self.check(
            lambda: fxforms.jvp(lambda x: Adding.apply(CAPTURED, x), (X,), (X,)),
            """\
RuleError: Adding changed a captured tensor of shape (3,) in place under jvp
(level 1), and its tangent would be lost. Pass the tensor to the transformed
function as an argument, or clone it first.""",
        )

    def test_captured_by_a_function_under_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(lambda x: Adding.apply(CAPTURED, x))(BATCH),
            """\
MutationError: vmap(<lambda>): output with shape [3] doesn't match the broadcast
shape [2, 3]. Under vmap only a tensor that has the batch can be changed in
place by one that has. A tensor captured from outside, or made inside by a
factory such as torch.zeros, has none: map over it, or make it from a mapped
tensor (x.new_zeros, x.clone).""",
        )
