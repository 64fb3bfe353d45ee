"""What the tests of messages share: the check itself, and small functions that are wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from custom import Cube
from state import modes
from torch import Tensor

import fxforms

__all__ = ["Cube"]

X = torch.tensor([1.0, 2.0, 3.0])
BATCH = torch.arange(6.0).reshape(2, 3)
INDEX = torch.arange(3)
CAPTURED = torch.zeros(3)


class Messages(expecttest.TestCase):
    """A fault raises an error of fxforms with a known message, and changes nothing else."""

    def check(self, fault: Callable[[], Any], expected: str = "") -> None:
        """``fault`` raises the ``expected`` message, here in lines of 80; then all works."""
        error = self.check_class(fault, (fxforms.errors.FxformsError, TypeError))
        text = " ".join(str(error).replace(".<locals>", "").split())
        shown = textwrap.fill(f"{type(error).__name__}: {text}", 80)
        self.assertExpectedInline(shown, expected, skip=1)

    def check_class(self, fault: Callable[[], Any], kind: Any) -> BaseException:
        """``fault`` raises an error of ``kind``; then all works."""
        before = modes()
        with pytest.raises(kind) as caught:
            fault()
        assert modes() == before
        per_sample = fxforms.vmap(fxforms.grad(Cube.apply))(X)
        assert torch.equal(per_sample, 3 * X**2)
        tangent = fxforms.jvp(Cube.apply, (X,), (X,))[1]
        assert torch.equal(tangent, 3 * X**3)
        return caught.value


def energies(x: Any, y: Any = None) -> Any:
    return x**2


def pair(x: Tensor, y: Any) -> tuple[Tensor, Any]:
    return x, y


def branching(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def escaped() -> list[Tensor]:
    """An argument and an intermediate of a vmap that has ended."""
    kept = []

    def keep(x: Tensor) -> Tensor:
        kept.extend([x, x * 2])
        return x

    fxforms.vmap(keep)(BATCH)
    return kept


def capturing(captured: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: (x * captured).sum()


def adding(captured: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: captured.add_(x)


def setting(captured: Tensor) -> Callable[[Tensor], Tensor]:
    def body(x: Tensor) -> Tensor:
        captured[0] = x[0]
        return x

    return body


class Adding(fxforms.Function):
    """Adds its second input to the first, in place."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, g

    @staticmethod
    def jvp(ctx: Any, tx: Tensor, ty: Tensor) -> Tensor:
        return tx.add_(ty)


class Combined(fxforms.Function):
    """Written with ctx in forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Bare(fxforms.Function):
    """Has no rule at all."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class Once(fxforms.Function):
    """The square; may be differentiated once."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


def wrong(result: Callable[[Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum of a product of two inputs, whose backward returns ``result(g)``."""

    class Dot(fxforms.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(weight: Tensor, bias: Tensor) -> Tensor:
            return weight * bias

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return result(g)

    return lambda x, y: Dot.apply(x, y).sum()


def tangents(result: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The identity, whose jvp returns ``result(t)``."""

    class Same(Bare):
        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Any:
            return result(t)

    return Same.apply


def mapping(result: Callable[[Tensor, Any], Any]) -> Callable[[Tensor], Any]:
    """The square, whose vmap returns ``result(x, in_dims)``."""

    class Mapped(Bare):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return result(x, in_dims)

    return Mapped.apply


def both_names() -> None:
    class Twice(Bare):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> Tensor:
            return g


def both_vmaps() -> None:
    class Twice(Bare):
        generate_vmap_rule = True

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            return x, in_dims[0]


def keyword_only() -> None:
    class Keyword(Bare):
        @staticmethod
        def forward(x: Tensor, *, factor: float) -> Tensor:
            return x * factor
