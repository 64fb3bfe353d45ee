"""The exception classes of fxforms.

Every message says what was seen, where, and what to do next. Each class also derives from the
built-in exception that PyTorch raises for the same fault, so ``except RuntimeError`` around code
that moved here from ``torch.func`` keeps working.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class FxformsError(Exception):
    """Base class of every error that fxforms raises on purpose.

    Example:
        >>> import torch, fxforms
        >>> try:
        ...     fxforms.grad(lambda x: x)(torch.ones(3))
        ... except fxforms.errors.FxformsError as error:
        ...     print(type(error).__name__)
        OutputError
    """


class ArgumentError(FxformsError, ValueError, RuntimeError):
    """An argument of a transform, or of the transformed function, has a wrong value."""


class StructureError(FxformsError, ValueError, RuntimeError):
    """Two pytrees that must have one structure, or matching shapes, do not."""


class OutputError(FxformsError, ValueError, RuntimeError):
    """The transformed function returned something the transform cannot use."""


class RuleError(FxformsError, NotImplementedError):
    """A Function lacks a rule that a transform needs, or a rule broke its contract."""


class GradientError(FxformsError, RuntimeError):
    """A backward or jvp rule returned the wrong number or shape of derivatives."""


class EscapedTensorError(FxformsError, RuntimeError):
    """A tensor of a transform was used after the transform ended."""


def name_of(func: Any) -> str:
    """The name by which an error message calls ``func``."""
    inner = getattr(func, "func", None)  # functools.partial
    if inner is not None and not hasattr(func, "__name__"):
        return f"partial({name_of(inner)})"
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None)
    return str(name) if name else type(func).__name__


def describe(value: object) -> str:
    """A short description of ``value`` for a message: type, and for a tensor dtype and shape."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (int, float, str)):
        return repr(value)
    return f"a {type(value).__name__}"


# What the C++ levels say when a batched tensor outlives its vmap, and nothing else says.
_ESCAPE_MARKS = ("may have escaped from inside a function", "batched == nullptr")


def explain_escape(error: RuntimeError, api: str, func: Callable[..., Any]) -> None:
    """Raise :class:`EscapedTensorError` if torch's ``error`` came from an escaped tensor."""
    text = str(error)
    if isinstance(error, FxformsError) or not any(mark in text for mark in _ESCAPE_MARKS):
        return
    raise EscapedTensorError(
        f"{api}({name_of(func)}): the function uses a tensor that was made inside a vmap which has "
        "ended. Such a tensor stands for one sample and has no value outside. Return it from the "
        "mapped function (out_dims says where its batch dim goes) instead of storing it."
    ) from error
