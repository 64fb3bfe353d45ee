"""Every fault a user can make: the message, and that the next call works.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

from error_cases import BATCH, INDEX, Messages, X, energies

import fxforms


class TestDerivatives(Messages):
    def test_grad_of_a_vector(self) -> None:
        self.check(
            lambda: fxforms.grad(energies)(X),
            """\
OutputError: grad(energies): the function must return one real floating tensor
of shape (), got a torch.float32 tensor of shape (3,). Reduce it to a scalar,
for instance with .sum(), or use vjp or jacrev, which take outputs of any shape.""",
        )

    def test_grad_of_a_number(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: 3.0)(X),
            """\
OutputError: grad(<lambda>): the function must return one real floating tensor
of shape (), got 3.0. Reduce it to a scalar, for instance with .sum(), or use
vjp or jacrev, which take outputs of any shape.""",
        )

    def test_grad_of_an_integer(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: x.sum().long())(X),
            """\
OutputError: grad(<lambda>): the function must return one real floating tensor
of shape (), got a torch.int64 tensor of shape (). Reduce it to a scalar, for
instance with .sum(), or use vjp or jacrev, which take outputs of any shape.""",
        )

    def test_grad_of_a_tuple(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: (x.sum(), x))(X),
            """\
OutputError: grad(<lambda>): the function must return one real floating tensor
of shape (), got a tuple. Reduce it to a scalar, for instance with .sum(), or
use vjp or jacrev, which take outputs of any shape.""",
        )

    def test_hvp_of_a_vector(self) -> None:
        self.check(
            lambda: fxforms.hvp(energies, (X,), (X,)),
            """\
OutputError: hvp(energies): the function must return one real floating tensor of
shape (), got a torch.float32 tensor of shape (3,). Reduce it to a scalar, for
instance with .sum(), or use vjp or jacrev, which take outputs of any shape.""",
        )

    def test_integer_input(self) -> None:
        self.check(
            lambda: fxforms.grad(energies)(INDEX),
            """\
ArgumentError: grad(energies): cannot differentiate with respect to args[0],
which is a torch.int64 tensor of shape (3,). Pass a floating or complex tensor
there, or leave it out of the differentiated arguments (argnums).""",
        )

    def test_integer_inside_an_input(self) -> None:
        self.check(
            lambda: fxforms.grad(energies)({"w": [X, INDEX]}),
            """\
ArgumentError: grad(energies): cannot differentiate with respect to
args[0]['w'][1], which is a torch.int64 tensor of shape (3,). Pass a floating or
complex tensor there, or leave it out of the differentiated arguments (argnums).""",
        )

    def test_integer_input_of_jvp(self) -> None:
        self.check(
            lambda: fxforms.jvp(energies, (INDEX,), (INDEX,)),
            """\
ArgumentError: jvp(energies): cannot differentiate with respect to primals[0],
which is a torch.int64 tensor of shape (3,). Pass a floating or complex tensor
there, or leave it out of the differentiated arguments (argnums).""",
        )

    def test_integer_input_of_jacfwd(self) -> None:
        self.check(
            lambda: fxforms.jacfwd(energies)(INDEX),
            """\
ArgumentError: jacfwd(energies): cannot differentiate with respect to args[0],
which is a torch.int64 tensor of shape (3,). Pass a floating or complex tensor
there, or leave it out of the differentiated arguments (argnums).""",
        )

    def test_argnums_out_of_range(self) -> None:
        self.check(
            lambda: fxforms.grad(energies, argnums=2)(X, X),
            """\
ArgumentError: grad(energies, argnums=2): there are 2 positional arguments, so
argnums must lie in [-2, 2). Arguments passed by keyword are not differentiated;
pass them by position.""",
        )

    def test_argnums_named_twice(self) -> None:
        self.check(
            lambda: fxforms.grad(energies, argnums=(0, -2))(X, X),
            """ArgumentError: grad(energies, argnums=(0, -2)): an argument is named twice.""",
        )

    def test_argnums_without_arguments(self) -> None:
        self.check(
            lambda: fxforms.grad(energies)(x=X),
            """\
ArgumentError: grad(energies, argnums=0): there are 0 positional arguments, so
argnums must lie in [0, 0). Arguments passed by keyword are not differentiated;
pass them by position.""",
        )

    def test_aux_missing(self) -> None:
        self.check(
            lambda: fxforms.grad(lambda x: x.sum(), has_aux=True)(X),
            """\
ArgumentError: grad(<lambda>, has_aux=True): the function must return the pair
(output, aux), got a torch.float32 tensor of shape ().""",
        )

    def test_vjp_of_a_number(self) -> None:
        self.check(
            lambda: fxforms.vjp(lambda x: (x, 3), X),
            """\
OutputError: vjp(<lambda>): output[1] is 3, but every output must be a floating
or complex tensor. Return other values through has_aux=True.""",
        )

    def test_vjp_of_nothing(self) -> None:
        self.check(
            lambda: fxforms.vjp(lambda: X),
            """ArgumentError: vjp(<lambda>): no primals to differentiate.""",
        )

    def test_cotangent_of_another_structure(self) -> None:
        self.check(
            lambda: fxforms.vjp(energies, X)[1]((X, X)),
            """\
StructureError: vjp(energies): the cotangents must have the structure of the
output, a single leaf, got (*, *).""",
        )

    def test_cotangent_with_keys_in_another_order(self) -> None:
        self.check(
            lambda: fxforms.vjp(lambda x: {"a": x, "b": x}, X)[1]({"b": X, "a": X}),
            """\
StructureError: vjp(<lambda>): the cotangents must have the structure of the
output, {'a': *, 'b': *}, got {'b': *, 'a': *}.""",
        )

    def test_cotangent_of_another_shape(self) -> None:
        self.check(
            lambda: fxforms.vjp(energies, X)[1](BATCH),
            """\
StructureError: vjp(energies): cotangents is a torch.float32 tensor of shape (2,
3), but the output there is a torch.float32 tensor of shape (3,). They must have
one shape.""",
        )

    def test_cotangent_that_is_no_tensor(self) -> None:
        self.check(
            lambda: fxforms.vjp(lambda x: {"e": x.sum()}, X)[1]({"e": 1.0}),
            """\
StructureError: vjp(<lambda>): cotangents['e'] is 1.0, but the output there is a
torch.float32 tensor of shape (). They must have one shape.""",
        )

    def test_tangent_of_another_structure(self) -> None:
        self.check(
            lambda: fxforms.jvp(energies, (X,), (X, X)),
            """\
StructureError: jvp(energies): primals and tangents must have one structure, got
(*,) and (*, *).""",
        )

    def test_tangent_of_another_shape(self) -> None:
        self.check(
            lambda: fxforms.jvp(energies, (X,), (BATCH,)),
            """\
StructureError: jvp(energies): tangents[0] is a torch.float32 tensor of shape
(2, 3), but the primal there is a torch.float32 tensor of shape (3,). They must
have one shape.""",
        )

    def test_tangent_of_another_dtype(self) -> None:
        self.check(
            lambda: fxforms.jvp(energies, (X,), (X.double(),)),
            """\
StructureError: jvp(energies): tangents[0] is of dtype torch.float64, but the
primal there is of dtype torch.float32. Cast one.""",
        )

    def test_primals_that_are_no_tuple(self) -> None:
        self.check(
            lambda: fxforms.jvp(energies, X, X),
            """\
ArgumentError: jvp(energies): primals must be the tuple of the function's
arguments, got a torch.float32 tensor of shape (3,). Write (x,) for one
argument.""",
        )

    def test_primals_of_hvp_that_are_no_tuple(self) -> None:
        self.check(
            lambda: fxforms.hvp(energies, X, X),
            """\
ArgumentError: hvp(energies): primals must be the tuple of the function's
arguments, got a torch.float32 tensor of shape (3,). Write (x,) for one
argument.""",
        )

    def test_strict_jvp_of_a_constant(self) -> None:
        self.check(
            lambda: fxforms.jvp(lambda x: X, (X,), (X,), strict=True),
            """\
OutputError: jvp(<lambda>, strict=True): output 0 does not depend on the
primals.""",
        )

    def test_complex_input_of_jacrev(self) -> None:
        self.check(
            lambda: fxforms.jacrev(energies)(X * 1j),
            """\
ArgumentError: jacrev(energies): the inputs must be real, got torch.complex64.
Differentiate torch.view_as_real of it, or use vjp or jvp.""",
        )

    def test_complex_output_of_jacfwd(self) -> None:
        self.check(
            lambda: fxforms.jacfwd(lambda x: x * 1j)(X),
            """\
ArgumentError: jacfwd(<lambda>): the outputs must be real, got torch.complex64.
Differentiate torch.view_as_real of it, or use vjp or jvp.""",
        )

    def test_chunk_size_of_jacrev(self) -> None:
        self.check(
            lambda: fxforms.jacrev(energies, chunk_size=0),
            """ArgumentError: jacrev(energies, chunk_size=0): chunk_size must be positive.""",
        )

    def test_tangents_of_linearize(self) -> None:
        self.check(
            lambda: fxforms.linearize(energies, X)[1](BATCH),
            """\
StructureError: linearize(energies): tangents[0] is a torch.float32 tensor of
shape (2, 3), but the primal there has shape (3,).""",
        )
