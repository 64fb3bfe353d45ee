"""``grad``, ``grad_and_value`` and ``value_and_grad``: gradients of scalar functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import OutputError, describe, name_of, translate
from fxforms.interpreters import below_all_levels, grad_level
from fxforms.transforms._arguments import Argnums, Leaves, split_aux, unwrap_all, wrap_all
from fxforms.transforms._backward import backward, check_saved_hooks
from fxforms.transforms._wrapper import transformed


def check_scalar(output: Any, api: str, func: Callable[..., Any]) -> None:
    """Raise OutputError unless ``output`` is a real floating tensor without dims."""
    if isinstance(output, torch.Tensor) and output.dim() == 0 and output.is_floating_point():
        return
    advice = (
        "Reduce it to a scalar, for instance with .sum(), or use vjp or jacrev, which take outputs "
        "of any shape."
    )
    if isinstance(output, torch.Tensor) and output.is_complex() and output.dim() == 0:
        advice = "Take its .real or .abs(), or use vjp, which takes complex outputs."
    raise OutputError(
        f"{api}({name_of(func)}): the function must return one real floating tensor of shape (), "
        f"got {describe(output)}. {advice}"
    )


def evaluate(
    api: str,
    func: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, torch.Tensor, Any]:
    """``(gradient, value, aux)`` of ``func`` at one point.

    The level ends before the backward pass: its operations then run directly on the level below,
    for the wrappers of an ended level come off at the first touch.
    """
    try:
        with grad_level() as level:
            leaves = Leaves(args, argnums, level, api, func)
            if kwargs:
                kwargs = {name: wrap_all(value, level) for name, value in kwargs.items()}
            output, aux = split_aux(func(*leaves.args, **kwargs), has_aux, api, func)
            check_scalar(output, api, func)
            output = substrate.unwrap_if_dead(output)
            value = substrate.unwrap_for_grad(output, level)
            check_saved_hooks([value])
            if has_aux:
                aux = unwrap_all(aux, level)
        with below_all_levels():
            cotangent = torch.ones((), dtype=value.dtype, device=value.device)
        gradients = backward([output], [cotangent], leaves.tensors, False, torch.is_grad_enabled())
    except RuntimeError as error:
        translate(error, f"{api}({name_of(func)})")
        raise
    return leaves.rebuild(gradients), value, aux


def grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The function that computes the gradient of ``func``.

    Args:
        func: returns one real floating tensor of shape ``()``, or with ``has_aux`` the pair
            ``(output, aux)``.
        argnums: position, or tuple of positions, of the arguments to differentiate with respect
            to; each a pytree of floating or complex tensors. May be negative.
        has_aux: ``func`` returns auxiliary data beside its output.

    Returns:
        A function of the same arguments. It returns the gradient, of the structure, shapes and
        dtypes of the chosen argument (a tuple of them if ``argnums`` is a tuple), and with
        ``has_aux`` the pair ``(gradient, aux)``. An argument that the output does not depend on
        has gradient zero. For a complex argument it is the conjugate Wirtinger derivative, as in
        ``torch.autograd``.

    Raises:
        OutputError: the output is not a real floating scalar tensor.
        ArgumentError: ``argnums`` is out of range, or names something that is not a floating or
            complex tensor.

    Example:
        >>> import torch, fxforms
        >>> fxforms.grad(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        gradient, _, aux = evaluate("grad", func, argnums, has_aux, args, kwargs)
        return (gradient, aux) if has_aux else gradient

    return transformed(func, run)


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The function that computes the gradient and the value of ``func``, in torch's order.

    Args and errors are those of :func:`grad`.

    Returns:
        A function that returns ``(gradient, value)``, or ``(gradient, (value, aux))``.

    Example:
        >>> import torch, fxforms
        >>> fxforms.grad_and_value(lambda x: x**2)(torch.tensor(3.0))
        (tensor(6.), tensor(9.))
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        gradient, value, aux = evaluate("grad_and_value", func, argnums, has_aux, args, kwargs)
        return gradient, ((value, aux) if has_aux else value)

    return transformed(func, run)


def value_and_grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The function that computes the value and the gradient of ``func``, in JAX's order.

    Args and errors are those of :func:`grad`.

    Returns:
        A function that returns ``(value, gradient)``, or ``((value, aux), gradient)``.

    Example:
        >>> import torch, fxforms
        >>> fxforms.value_and_grad(lambda x: x**2)(torch.tensor(3.0))
        (tensor(9.), tensor(6.))
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        gradient, value, aux = evaluate("value_and_grad", func, argnums, has_aux, args, kwargs)
        return ((value, aux) if has_aux else value), gradient

    return transformed(func, run)
