"""What ``jit`` refuses: the message names the user's line, and the next call works.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from error_cases import Messages, X
from torch import Tensor

import fxforms
from fxforms.errors import TraceError


def refused(f: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Any]:
    """A call of ``f`` under ``jit``; its error has no folder and no line number in it."""

    def call() -> Any:
        jitted = fxforms.jit(f, backend="eager", **options)
        try:
            return jitted(*(args or (X,)))
        except fxforms.errors.FxformsError as error:
            assert jitted.cache_info().size == 0
            text = re.sub(r":\d+:", ":", str(error).replace(str(Path(__file__).parent), ""))
            kind = TraceError if isinstance(error, TraceError) else type(error)
            raise kind(text.replace("/test_", "test_")) from error

    return call


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
torch.where, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
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
values with torch.where, make an argument that decides the program a static one
(static_argnums), or call fxforms.pure_callback for a part that must run in
Python.""",
        )

    def test_item(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x * x.max().item()

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x * x.max().item(): item() needs the
value of a torch.float32 tensor of shape (). Inside jit a tensor has a shape but
no value until the call. Choose between values with torch.where, make an
argument that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
        )

    def test_float(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x * float(x[0])

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x * float(x[0]): float() needs the
value of a torch.float32 tensor of shape (). Inside jit a tensor has a shape but
no value until the call. Choose between values with torch.where, make an
argument that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
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
no value until the call. Choose between values with torch.where, make an
argument that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
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
call. Choose between values with torch.where, make an argument that decides the
program a static one (static_argnums), or call fxforms.pure_callback for a part
that must run in Python.""",
        )

    def test_numpy_function(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x + np.sin(x)

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x + np.sin(x): NumPy needs the value
of a torch.float32 tensor of shape (3,). Inside jit a tensor has a shape but no
value until the call. Choose between values with torch.where, make an argument
that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
        )

    def test_nonzero(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x.nonzero()

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x.nonzero(): a traced tensor has no
value to give (aten.nonzero.default). Inside jit a tensor has a shape but no
value until the call. Choose between values with torch.where, make an argument
that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
        )

    def test_mask(self) -> None:
        def f(x: Tensor) -> Tensor:
            return x[x > 1].sum()

        self.check(
            refused(f),
            """\
TraceError: test_staging_errors.py: return x[x > 1].sum(): a traced tensor has
no value to give (aten.nonzero.default). Inside jit a tensor has a shape but no
value until the call. Choose between values with torch.where, make an argument
that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
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
but no value until the call. Choose between values with torch.where, make an
argument that decides the program a static one (static_argnums), or call
fxforms.pure_callback for a part that must run in Python.""",
        )

    def test_in_a_function_that_is_called(self) -> None:
        def helper(x: Tensor) -> list[float]:
            return x.tolist()

        self.check(
            refused(lambda x: x + torch.tensor(helper(x))),
            """\
TraceError: test_staging_errors.py: return x.tolist(): item() needs the value of
a torch.float32 tensor of shape (). Inside jit a tensor has a shape but no value
until the call. Choose between values with torch.where, make an argument that
decides the program a static one (static_argnums), or call fxforms.pure_callback
for a part that must run in Python.""",
        )


class TestArguments(Messages):
    def test_array(self) -> None:
        self.check(
            refused(lambda x, y: x * y["a"], X, {"a": np.ones(3)}),
            """\
ArgumentError: jit of <lambda>: arguments[0][1]['a'] is a ndarray, which is
neither a tensor nor hashable, so a graph cannot be kept for it. Pass a tensor
(torch.as_tensor), or a value with a hash, such as a tuple.""",
        )

    def test_unhashable_static(self) -> None:
        self.check(
            refused(lambda x, names: x, X, {"a"}, static_argnums=1),
            """\
ArgumentError: jit of <lambda>: a static argument is a set, which is neither a
tensor nor hashable, so a graph cannot be kept for it. Pass a tensor
(torch.as_tensor), or a value with a hash, such as a tuple.""",
        )

    def test_backend(self) -> None:
        self.check(
            lambda: fxforms.jit(torch.sin, backend="cuda"),
            """\
ArgumentError: jit of sin: backend='cuda', compile='background'. The backends
are 'inductor' and 'eager'; compile is 'background' or 'wait'.""",
        )

    def test_compile(self) -> None:
        self.check(
            lambda: fxforms.jit(torch.sin, compile="never"),
            """\
ArgumentError: jit of sin: backend='inductor', compile='never'. The backends are
'inductor' and 'eager'; compile is 'background' or 'wait'.""",
        )


class TestLeaks(Messages):
    def test_list(self) -> None:
        seen: list[Tensor] = []

        def f(x: Tensor) -> Tensor:
            seen.append(x * 2)
            return x

        self.check(
            refused(f),
            """\
TraceError: jit of f: the function leaves a traced tensor in a list of 'seen',
where it has no value after the trace. Return the tensor instead and store it in
the caller, or change a tensor that is there in place (copy_, add_), which jit
carries over.""",
        )
        assert seen == []

    def test_attribute(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                self.last = x * 2
                return x

        model = Model()
        self.check(
            lambda: fxforms.jit(model, backend="eager")(X),
            """\
TraceError: jit of Model: the function leaves a traced tensor in 'last' of
'Model', where it has no value after the trace. Return the tensor instead and
store it in the caller, or change a tensor that is there in place (copy_, add_),
which jit carries over.""",
        )
        assert "last" not in vars(model)


class TestBodies(Messages):
    def test_shape_by_value(self) -> None:
        class Kept(fxforms.Function):
            @staticmethod
            def forward(x: Tensor) -> Tensor:
                return torch.from_numpy(x.detach().numpy()[x.detach().numpy() > 1.5])

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

        self.check(
            lambda: fxforms.jit(Kept.apply, backend="eager")(X),
            """\
TraceError: TestBodies.test_shape_by_value.Kept.forward returned a torch.float32
tensor of shape (2,), and the graph that calls it was traced for a torch.float32
tensor of shape (0,). A body under jit must return one shape for one shape.""",
        )
