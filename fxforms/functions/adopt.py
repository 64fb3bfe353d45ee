"""Functions of others, made to compose without editing them."""

from __future__ import annotations

import threading
from types import CodeType
from types import FunctionType as PythonFunction
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.functions.function import Function, FunctionType

_lock = threading.Lock()
_method = torch.autograd.Function.__dict__["apply"].__func__
_torch_apply = PythonFunction(
    _method.__code__, _method.__globals__, "apply", None, _method.__closure__
)
_users = 0


def adopt(function: Any) -> Any:
    """A third party's ``torch.autograd.Function`` as a :class:`fxforms.Function`.

    What the class does stays as it is. Rules it lacks are derived; both of torch's forms are taken.

    Args:
        function: a subclass of ``torch.autograd.Function``.

    Returns:
        A subclass of it and of :class:`fxforms.Function`, the same at each call.

    Raises:
        TypeError: ``function`` is not such a class.

    Example:
        >>> import torch, fxforms
        >>> class Theirs(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**2
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * ctx.saved_tensors[0] * g
        >>> fxforms.vmap(fxforms.grad(fxforms.adopt(Theirs).apply))(torch.tensor([1.0, 3.0]))
        tensor([2., 6.])
    """
    if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        raise TypeError(f"adopt expects a subclass of torch.autograd.Function, got {function!r}.")
    if issubclass(function, Function):
        return function
    if function is torch.autograd.Function:
        raise TypeError(
            "adopt expects a subclass of torch.autograd.Function, not that class itself."
        )
    with _lock:
        return _adopted(function)


def _adopted(function: type[torch.autograd.Function]) -> Any:
    """The one class made of ``function``, which alone keeps it, so that both can be collected."""
    found = vars(function).get("_fx_adopted")
    if found is None:
        names = {"__module__": function.__module__, "__doc__": function.__doc__}
        found = FunctionType(function.__name__, (function, Function), names)
        function._fx_adopted = found  # type: ignore[attr-defined]
    return found


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.Function.apply`` while ``adopt_all`` is in force."""
    if substrate.transforms_active():
        return Function.apply.__func__(adopt(cls), *args, **kwargs)  # type: ignore[attr-defined]
    return _torch_apply(cls, *args, **kwargs)


def _adopting_code() -> CodeType:
    """Code for torch's ``apply`` that goes to :func:`_apply`, by an attribute of torch's class."""
    __class__ = torch.autograd.Function  # the one free variable of torch's method

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return __class__.fxforms_apply(cls, *args, **kwargs)  # type: ignore[attr-defined]

    return apply.__code__


class adopt_all:
    """Make every ``torch.autograd.Function`` compose, also those called deep inside other code.

    A call sets it up for the process; as a context manager it ends with the block. Outside of
    transforms nothing changes.

    Example:
        >>> import torch, fxforms
        >>> class Theirs(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x**2
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * ctx.saved_tensors[0] * g
        >>> with fxforms.adopt_all():
        ...     fxforms.grad(lambda x: Theirs.apply(x).sum())(torch.tensor([1.0, 3.0]))
        tensor([2., 6.])
    """

    def __init__(self) -> None:
        self._count(1)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._count(-1)

    @staticmethod
    def _count(change: int) -> None:
        """Count a user in or out; torch is as it was when there is none."""
        global _users
        with _lock:
            _users += change
            torch.autograd.Function.fxforms_apply = staticmethod(_apply)  # type: ignore[attr-defined]
            # The code, not the method: modules hold bound ones, taken when they were imported.
            _method.__code__ = _adopting_code() if _users else _torch_apply.__code__
