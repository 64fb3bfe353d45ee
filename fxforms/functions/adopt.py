"""Functions of others, made to compose without editing them."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fxforms import _substrate as substrate
from fxforms.functions.function import Function, FunctionType

_adopted: WeakKeyDictionary[type, Any] = WeakKeyDictionary()


def adopt(function: Any) -> Any:
    """A third party's ``torch.autograd.Function`` as a :class:`fxforms.Function`.

    The class itself stays as it is. Rules it lacks are derived; both of torch's forms are taken.

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
    if function not in _adopted:
        names = {"__module__": function.__module__, "__doc__": function.__doc__}
        _adopted[function] = FunctionType(function.__name__, (function, Function), names)
    return _adopted[function]


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
        self._before = torch.autograd.Function.__dict__["apply"]
        before = self._before.__func__

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if substrate.transforms_active():
                return adopt(cls).apply(*args, **kwargs)
            return before(cls, *args, **kwargs)

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.autograd.Function.apply = self._before  # type: ignore[method-assign]
