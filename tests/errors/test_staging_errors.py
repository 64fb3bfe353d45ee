"""What ``jit`` refuses: the message names the user's line, and the next call works.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

import numpy as np
import torch
from error_cases import Messages
from staging_cases import refused
from torch import Tensor

import fxforms


class TestValues(Messages):
    def test_condition(self) -> None:
        def f(x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x
            return -x

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: if x.sum() > 0:: a Python condition (if,
while, and, or, not) needs the value of a torch.bool tensor of shape (). Inside
jit a tensor has a shape but no value until the call. Choose between values with
torch.where, between programs with fxforms.cond, make an argument that decides
the program a static one (static_argnums), or call fxforms.pure_callback for a
part that must run in Python.""",
        )

    def test_loop(self) -> None:
        def f(x: Tensor) -> Tensor:
            while (x < 3).all():
                x = x * 2
            return x

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: while (x < 3).all():: a Python condition
(if, while, and, or, not) needs the value of a torch.bool tensor of shape ().
Inside jit a tensor has a shape but no value until the call. Choose between
values with torch.where, between programs with fxforms.cond, make an argument
that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
        )

    def test_item(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x * x.max().item()

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x * x.max().item(): item() needs the
value of a torch.float32 tensor of shape (). Inside jit a tensor has a shape but
no value until the call. Choose between values with torch.where, between
programs with fxforms.cond, make an argument that decides the program a static
one (static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_float(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x * float(x[0])

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x * float(x[0]): float() needs the
value of a torch.float32 tensor of shape (). Inside jit a tensor has a shape but
no value until the call. Choose between values with torch.where, between
programs with fxforms.cond, make an argument that decides the program a static
one (static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_the_value_of_a_captured_tensor(self) -> None:
        scale = torch.tensor(2.0)

        def f(x: Tensor) -> Tensor:
            return x * float(scale)

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x * float(scale): float() needs the
value of a torch.float32 tensor of shape (). Inside jit a tensor has a shape but
no value until the call. Choose between values with torch.where, between
programs with fxforms.cond, make an argument that decides the program a static
one (static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_print(self) -> None:
        def f(x: Tensor) -> Tensor:
            print("x is", x)
            return x

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: print("x is", x): printing a torch.float32
tensor of shape (3,), which has no value while jit traces. Write
fxforms.debug.print, which prints at every call.""",
        )

    def test_format(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x * len(f"{x}")

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x * len(f"{x}"): printing a
torch.float32 tensor of shape (3,), which has no value while jit traces. Write
fxforms.debug.print, which prints at every call.""",
        )

    def test_numpy(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x + torch.from_numpy(np.sin(x.numpy()))

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x +
torch.from_numpy(np.sin(x.numpy())): numpy() needs the value of a torch.float32
tensor of shape (3,). Inside jit a tensor has a shape but no value until the
call. Choose between values with torch.where, between programs with
fxforms.cond, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_numpy_function(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x + np.sin(x)

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x + np.sin(x): NumPy needs the value
of a torch.float32 tensor of shape (3,). Inside jit a tensor has a shape but no
value until the call. Choose between values with torch.where, between programs
with fxforms.cond, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_nonzero(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x.nonzero()

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x.nonzero(): a traced tensor has no
value to give (aten.nonzero.default). Inside jit a tensor has a shape but no
value until the call. Choose between values with torch.where, between programs
with fxforms.cond, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_mask(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x[x > 1].sum()

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x[x > 1].sum(): a traced tensor has
no value to give (aten.nonzero.default). Inside jit a tensor has a shape but no
value until the call. Choose between values with torch.where, between programs
with fxforms.cond, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_under_a_transform(self) -> None:
        def f(x: Tensor) -> Tensor:
            return fxforms.vmap(fxforms.grad(lambda y: y**2 if y > 0 else y))(x)

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return fxforms.vmap(fxforms.grad(lambda y:
y**2 if y > 0 else y))(x): a Python condition (if, while, and, or, not) needs
the value of a torch.bool tensor of shape (). Inside jit a tensor has a shape
but no value until the call. Choose between values with torch.where, between
programs with fxforms.cond, make an argument that decides the program a static
one (static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_in_a_function_that_is_called(self) -> None:
        def helper(x: Tensor) -> list[float]:
            return x.tolist()

        self.check(
            refused(lambda x: x + torch.tensor(helper(x))),
            """\
TraceError: test_staging_errors.py: return x.tolist(): item() needs the value of
a torch.float32 tensor of shape (). Inside jit a tensor has a shape but no value
until the call. Choose between values with torch.where, between programs with
fxforms.cond, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )
