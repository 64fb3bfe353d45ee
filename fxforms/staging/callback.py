"""``pure_callback``: a Python function of known result shapes, called from wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms._tree import PyTreeSpec, flatten, show, take_tensors
from fxforms.errors import ArgumentError, OutputError, RuleError, describe, name_of
from fxforms.functions.bind import bind
from fxforms.functions.inline import tracked
from fxforms.interpreters import Primitive, VmapInfo
from fxforms.staging import fake
from fxforms.staging.opaque import stage_call

Tensors = Sequence[torch.Tensor]
_METHODS = (None, "sequential", "expand_dims", "broadcast_all")


class Callback(Primitive):
    """The instance of the operator: a flat function with the shapes of what it returns."""

    def __init__(
        self, name: str, function: Callable[..., Tensors], likes: Tensors, method: str | None
    ) -> None:
        self.__name__ = name
        self.function = function
        self.likes = likes
        self.method = method

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """Call the function, or put the call into the graph being traced."""
        if tracked(operands):
            raise self._no_derivative("autograd (requires_grad)")
        if fake.must_stage(operands):
            staged: Tensors = stage_call(self.function, operands, self.likes)
            return staged
        with torch.no_grad():
            outputs = self.function(*operands)
        self._check(outputs)
        return outputs

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        outputs: Tensors = bind(self, operands)
        return outputs

    def grad_rule(self, *operands: torch.Tensor) -> Tensors:
        """None: nothing is known of the function."""
        raise self._no_derivative("reverse mode (grad, vjp, jacrev)")

    def jvp_rule(self, primals: Any, tangents: Any) -> Any:
        """None: nothing is known of the function."""
        raise self._no_derivative("forward mode (jvp, jacfwd)")

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[torch.Tensor, ...]
    ) -> tuple[Any, Any]:
        """One call of a function of the whole batch, as ``vmap_method`` says."""
        if self.method is None:
            raise RuleError(
                f"pure_callback of {self.__name__} inside vmap: say how it takes a batch. "
                f'vmap_method="sequential" calls it once for each sample; "expand_dims" and '
                f'"broadcast_all" call it once with the batch as a leading dim.'
            )
        size = info.batch_size
        moved = [self._place(x, d, size) for x, d in zip(operands, in_dims)]
        function = self.function
        if self.method == "sequential":
            function = sequential(self.function, size, [d is not None for d in in_dims])
        likes = [x.expand(size, *x.shape) for x in self.likes]
        return Callback(self.__name__, function, likes, self.method).bind(*moved), 0

    def _place(self, operand: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
        """``operand`` with its batch in front, as the method lays it out."""
        if dim is not None:
            return operand.movedim(dim, 0)
        if self.method == "sequential":
            return operand
        leading = operand.unsqueeze(0)
        return leading.expand(size, *operand.shape) if self.method == "broadcast_all" else leading

    def _check(self, outputs: Tensors) -> None:
        """Raise OutputError unless ``outputs`` are what was promised."""
        for output, like in zip(outputs, self.likes):
            is_tensor = isinstance(output, torch.Tensor)
            if not is_tensor or (output.shape, output.dtype) != (like.shape, like.dtype):
                raise OutputError(
                    f"pure_callback: {self.__name__} returned {describe(output)}, and "
                    f"result_shape promises {describe(like)}."
                )

    def _no_derivative(self, mode: str) -> RuleError:
        return RuleError(
            f"pure_callback of {self.__name__} was differentiated by {mode}, and a callback has no "
            f"derivative. Detach its arguments, or call it from the forward of a Function or of a "
            f"custom_vjp, with a rule beside it."
        )


def sequential(
    function: Callable[..., Tensors], size: int, mapped: Sequence[bool]
) -> Callable[..., Tensors]:
    """``function`` called on each of ``size`` samples."""

    def run(*operands: torch.Tensor) -> Tensors:
        samples = [
            function(*[x[i] if is_mapped else x for x, is_mapped in zip(operands, mapped)])
            for i in range(size)
        ]
        return [torch.stack(outputs) for outputs in zip(*samples)]

    run.__qualname__ = function.__qualname__
    return run


def pure_callback(
    callback: Callable[..., Any],
    result_shape: Any,
    *args: Any,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """``callback(*args, **kwargs)``, called with real tensors also from inside :func:`jit`.

    Under ``jit`` the call becomes one node of the graph, and runs at every call of the graph; it
    may be left out or repeated, so it should do nothing but compute. What it computes with (NumPy,
    a C library) is up to it.

    Args:
        callback: a function of pytrees of tensors, which returns a pytree of tensors.
        result_shape: a pytree like its result: anything with ``shape`` and ``dtype``, such as the
            tensors of :func:`eval_shape` or ``torch.empty(3, device="meta")``.
        args, kwargs: what to call it with.
        vmap_method: under :func:`vmap`: ``"sequential"`` calls it once for each sample;
            ``"expand_dims"`` once, each argument with a leading dim that is the batch or 1;
            ``"broadcast_all"`` once, every argument with the batch in front. None: an error.

    Returns:
        The result, of the shapes and dtypes of ``result_shape``.

    Raises:
        ArgumentError: ``vmap_method`` is unknown.
        OutputError: the result is not as promised.
        RuleError: it is differentiated, or mapped without a ``vmap_method``.

    Example:
        >>> import numpy, torch, fxforms
        >>> def sine(x):
        ...     return torch.from_numpy(numpy.sin(x.numpy()))
        >>> f = fxforms.jit(lambda x: 2 * fxforms.pure_callback(sine, x, x))
        >>> f(torch.zeros(2))
        tensor([0., 0.])

    The methods and their names are those of ``jax.pure_callback``.
    """
    name = name_of(callback)
    if vmap_method not in _METHODS:
        raise ArgumentError(
            f"pure_callback of {name}: vmap_method={vmap_method!r}. It is one of "
            f"'sequential', 'expand_dims', 'broadcast_all', or None."
        )
    wanted, out_spec = flatten(result_shape)
    operands, put = take_tensors((args, kwargs))
    function = flat_function(callback, put, out_spec)
    device = operands[0].device if operands else None
    likes = [promised(name, x, device) for x in wanted]
    outputs = Callback(name, function, likes, vmap_method).bind(*operands)
    return out_spec.unflatten(list(outputs))


def promised(name: str, wanted: Any, device: torch.device | None) -> torch.Tensor:
    """A tensor of the shape and dtype of ``wanted``, without memory for its elements."""
    shape, dtype = getattr(wanted, "shape", None), getattr(wanted, "dtype", None)
    if shape is None or not isinstance(dtype, torch.dtype):
        raise ArgumentError(
            f"pure_callback of {name}: result_shape holds {describe(wanted)}, which has no shape "
            f"and torch.dtype. Give a tensor like each result, such as "
            f'torch.empty(3, device="meta"), or what fxforms.eval_shape returns.'
        )
    return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))


def flat_function(
    callback: Callable[..., Any], put: Callable[[Tensors], Any], out_spec: PyTreeSpec
) -> Callable[..., Tensors]:
    """``callback`` as a function of tensors, of which ``put`` makes its arguments."""

    def function(*tensors: torch.Tensor) -> Tensors:
        args, kwargs = put(tensors)
        outputs, found = flatten(callback(*args, **kwargs))
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                raise OutputError(
                    f"pure_callback: {name_of(callback)} returned {describe(output)}, which is no "
                    f"tensor. Return a tensor (torch.as_tensor)."
                )
        if found != out_spec:
            raise OutputError(
                f"pure_callback: {name_of(callback)} returned {show(found)}, and result_shape "
                f"promises {show(out_spec)}."
            )
        return outputs

    function.__qualname__ = name_of(callback)
    return function
