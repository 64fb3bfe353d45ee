"""``linear_function``: a linear map with its transpose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fxforms.errors import name_of
from fxforms.functions.call import enter_holding
from fxforms.functions.decorators import check_callable
from fxforms.functions.function import Function, FunctionType
from fxforms.functions.held import Bodies


def linear_function(
    fun: Callable[..., Any], transpose: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """A function that is linear in its one argument, with a given transpose.

    Args:
        fun: linear; takes and returns a pytree of tensors.
        transpose: the transposed map: takes a pytree like the output, returns one like the
            argument.

    Returns:
        ``fun`` with both derivatives known: forward mode applies it to the tangent, reverse mode
        applies ``transpose`` to the cotangent. They are linear functions too, so neither map needs
        a derivative of its own.

    Example:
        >>> import torch, fxforms
        >>> double = fxforms.linear_function(lambda x: 2 * x, lambda ct: 2 * ct)
        >>> fxforms.grad(lambda x: double(x).sum())(torch.ones(2))
        tensor([2., 2.])
    """
    maps = _Linear(fun), _Linear(transpose)
    maps[0].transposed, maps[1].transposed = maps[1], maps[0]

    @functools.wraps(fun, updated=())
    def call(x: Any) -> Any:
        return maps[0].apply(x)

    return call


class _Linear:
    """A linear map as a Function; its derivatives are it and its transpose."""

    transposed: _Linear

    def __init__(self, fun: Callable[[Any], Any]) -> None:
        check_callable(fun, "linear_function")

        def forward(ctx: Any, x: Any) -> Any:
            output = fun(x)
            ctx.several = isinstance(output, tuple)
            return output

        def backward(ctx: Any, *cotangents: Any) -> tuple[Any]:
            return (self.transposed.apply(cotangents if ctx.several else cotangents[0]),)

        def jvp(ctx: Any, tangent: Any) -> Any:
            return self.apply(tangent)

        attributes: dict[str, Any] = {
            "forward": staticmethod(forward),
            "backward": staticmethod(backward),
            "jvp": staticmethod(jvp),
            "splits_always": True,
        }
        self._bodies = Bodies(fun)
        self.function: Any = FunctionType(name_of(fun), (Function,), attributes)

    def apply(self, x: Any) -> Any:
        """The map at ``x``."""
        if held := self._bodies.held((x,)):
            return enter_holding(self.function._rules, (x,), held)
        return self.function.apply(x)
