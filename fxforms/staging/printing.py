"""``fxforms.debug.print``: printing at every call, also from a graph."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch

from fxforms._tree import map_tensors, take_tensors
from fxforms.errors import ArgumentError
from fxforms.functions.bind import bind
from fxforms.functions.presented import presented
from fxforms.interpreters import Primitive, VmapInfo, current_interpreter
from fxforms.staging import fake
from fxforms.staging.opaque import stage_effect


class Printing(Primitive):
    """The instance of the operator: prints values, returns nothing."""

    __name__ = "debug.print"

    def __init__(self, show: Callable[..., None]) -> None:
        self.show = show

    def evaluate(self, *operands: torch.Tensor) -> tuple[()]:
        """Print, or put a call that prints into the graph being traced."""
        if fake.must_stage(operands):
            stage_effect(self.show, operands)
        else:
            self.show(*[x.detach() for x in operands])
        return ()

    def bind(self, *operands: torch.Tensor) -> tuple[()]:
        """The operator, at the level now on top."""
        bind(self, operands)
        return ()

    def grad_rule(self, *operands: torch.Tensor) -> tuple[()]:
        """The values as the level below has them."""
        interpreter: Any = current_interpreter()
        inner = interpreter.unwrap(operands)
        with interpreter.lower():
            return self.bind(*inner)

    def jvp_rule(self, primals: Any, tangents: Any) -> tuple[tuple[()], tuple[()]]:
        """The primals alone."""
        return self.bind(*primals), ()

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[torch.Tensor, ...]
    ) -> tuple[tuple[()], tuple[()]]:
        """One line a sample."""

        def each(*tensors: torch.Tensor) -> None:
            for i in range(info.batch_size):
                self.show(*[x if d is None else x.select(d, i) for x, d in zip(tensors, in_dims)])

        return Printing(each).bind(*operands), ()


class Anything:
    """Stands for a value whose format is not looked at."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __getitem__(self, key: Any) -> Anything:
        return self


def print(text: str, *args: Any, **kwargs: Any) -> None:
    """Print ``text.format(*args, **kwargs)`` with the values of the tensors in it.

    Under :func:`fxforms.jit` it prints at every call, not at the trace; under :func:`fxforms.vmap`
    once for each sample; under a derivative the values themselves, once.

    Args:
        text: a format string, as of ``str.format``.
        args, kwargs: pytrees of tensors and Python values.

    Raises:
        ArgumentError: ``text`` names an argument that is not given.

    Example:
        >>> import torch, fxforms
        >>> def f(x):
        ...     fxforms.debug.print("x = {}", x)
        ...     return x.sin()
        >>> _ = fxforms.vmap(f)(torch.tensor([0.0, 1.0]))
        x = 0.0
        x = 1.0

    The name and the meaning are those of ``jax.debug.print``.
    """
    tensors, put = take_tensors(map_tensors(presented, (args, kwargs)))

    def show(*values: torch.Tensor) -> None:
        args, kwargs = put(values)
        builtins.print(text.format(*args, **kwargs), flush=True)

    anything = Anything()
    try:
        text.format(*[anything for _ in args], **dict.fromkeys(kwargs, anything))
    except (IndexError, KeyError) as error:
        raise ArgumentError(f"debug.print({text!r}): no argument for a field ({error}).") from None
    Printing(show).bind(*tensors)
