"""Wrong arguments of ``jit``, and functions that leave tensors behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from error_cases import Messages, X
from staging_cases import refused
from torch import Tensor

import fxforms


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
