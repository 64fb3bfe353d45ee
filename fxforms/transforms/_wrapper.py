"""What every transform's wrapper does: keep the function's name, stay out of Dynamo's graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from fxforms.errors import ArgumentError, describe

Run = TypeVar("Run", bound=Callable[..., Any])
_compiling = torch.compiler.is_dynamo_compiling
_outside_graph: Callable[[Any], Any] = torch.compiler.disable


def eager(function: Run) -> Run:
    """``function``, called outside the graph when ``torch.compile`` traces the caller.

    Dynamo would trace through the levels and lose custom rules; a graph break keeps the value.
    ``is_dynamo_compiling`` is a constant False outside of a trace and costs nothing.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return _outside_graph(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def transformed(func: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """The user-facing function of a transform of ``func``, computed by ``run``.

    Raises ArgumentError if ``func`` is no function.
    """
    if not callable(func):
        api = run.__qualname__.split(".")[0]
        raise ArgumentError(f"{api} takes a function, got {describe(func)}.")
    wrapped = eager(run)
    functools.update_wrapper(wrapped, func, updated=())
    return wrapped
