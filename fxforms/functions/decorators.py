"""Custom rules for plain functions, by decorators as JAX names them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from fxforms._tree import flatten, map_tensors
from fxforms.errors import ArgumentError, RuleError, StructureError, describe, name_of
from fxforms.functions.call import enter_holding
from fxforms.functions.function import Function, FunctionType
from fxforms.functions.held import Bodies
from fxforms.functions.inline import differentiated


def check_callable(fun: Any, decorator: str) -> None:
    """Raise TypeError if ``fun`` is no function."""
    if not callable(fun):
        raise TypeError(f"{decorator} expects a function, got {describe(fun)}.")


def positional_signature(fun: Callable[..., Any], decorator: str) -> inspect.Signature:
    """The signature of ``fun``; raises RuleError if it has keyword-only parameters."""
    check_callable(fun, decorator)
    try:
        signature = inspect.signature(fun)
    except ValueError:  # a builtin such as torch.sin tells none
        return inspect.signature(lambda *args: None)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            raise RuleError(
                f"{name_of(fun)} has the keyword-only parameter {parameter.name!r}. A function "
                f"with rules of its own takes its arguments by position: drop the '*' (a caller "
                f"may still name it)."
            )
    return signature


def bound_arguments(
    fun: Callable[..., Any], signature: inspect.Signature, args: Any, kwargs: Any
) -> tuple[Any, ...]:
    """The arguments of a call of ``fun`` by position, defaults in their place."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise TypeError(f"{name_of(fun)}: {error}; it takes ({names}).") from None
    bound.apply_defaults()
    return bound.args


def as_pair(result: Any, fun: Callable[..., Any], rule: str, pair: str) -> tuple[Any, Any]:
    """What ``rule`` of ``fun`` returned, which must be a ``pair``."""
    if not (isinstance(result, tuple) and len(result) == 2):
        seen = f"a tuple of {len(result)}" if isinstance(result, tuple) else describe(result)
        raise StructureError(f"{name_of(fun)}: {rule} must return the pair {pair}, got {seen}.")
    return result


class _Decorated:
    """A function with rules of its own; calls bind by the function's signature."""

    missing: str

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: tuple[int, ...] = ()) -> None:
        self._signature = positional_signature(fun, type(self).__name__)
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun
        count = len(self._signature.parameters)
        if not isinstance(nondiff_argnums, (tuple, list)):
            raise ArgumentError(
                f"{name_of(fun)}: nondiff_argnums={nondiff_argnums!r} must be a tuple of "
                f"positions, such as (0,)."
            )
        if any(not -count <= i < count for i in nondiff_argnums):
            raise ArgumentError(
                f"{name_of(fun)}: nondiff_argnums={nondiff_argnums!r} must lie in "
                f"[{-count}, {count}), for there are {count} arguments."
            )
        self._nondiff = tuple(sorted([i % count for i in nondiff_argnums]))
        self._function: Any = None
        self._bodies = Bodies(fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise RuleError(f"{name_of(self.fun)} was called before {self.missing} gave it a rule.")
        values = bound_arguments(self.fun, self._signature, args, kwargs)
        if self._nondiff:
            values = tuple(
                [
                    map_tensors(constant, v) if i in self._nondiff else v
                    for i, v in enumerate(values)
                ]
            )
        held = self._bodies.held(self._divide(values)[1] if self._nondiff else values)
        if held:
            return enter_holding(self._function._rules, values, held)
        return self._choose(values).apply(*values)

    def _choose(self, values: tuple[Any, ...]) -> Any:
        """The Function that a call on ``values`` is one of."""
        return self._function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A decorated method: the instance is its first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def _define(self, **methods: Callable[..., Any]) -> None:
        """Make the Function of these methods."""
        self._function = self._make(methods, splits_always=True)

    def _make(self, methods: dict[str, Callable[..., Any]], **attributes: Any) -> Any:
        """A Function of these static methods, named like ``fun``."""
        static: dict[str, Any] = {name: staticmethod(m) for name, m in methods.items()}
        return FunctionType(name_of(self.fun), (Function,), static | attributes)

    def _divide(self, values: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """``values`` of the non-differentiable arguments, and of the others."""
        fixed = [values[i] for i in self._nondiff]
        return fixed, [v for i, v in enumerate(values) if i not in self._nondiff]


class custom_vjp(_Decorated):
    """A function with a reverse rule of its own; forward mode and vmap are derived.

    Args:
        fun: any function of pytrees.
        nondiff_argnums: positions of arguments that are not differentiated; ``bwd`` gets them
            first.

    ``f.defvjp(fwd, bwd)`` sets the rule: ``fwd(*args)`` returns ``(output, residuals)``, and
    ``bwd(*nondiff, residuals, cotangent)`` the tuple of gradients of the other arguments, None for
    one that has none. The residuals may be any pytree.

    ``fwd`` runs in place of ``fun`` where something is differentiated: below a level other than a
    ``vmap``, or where plain autograd follows an argument. A call of the decorated function in
    ``fwd`` is one of ``fun``.

    Raises:
        RuleError: called before ``defvjp``.
        UnsupportedError: a derivative by a tensor that ``fwd`` uses and is not given.

    Reference:
        ``jax.custom_vjp``.

    Example:
        >>> import torch, fxforms
        >>> @fxforms.custom_vjp
        ... def clipped(x):
        ...     return x**2
        >>> clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: ((2 * x * ct).clamp(-3, 3),))
        >>> fxforms.vmap(fxforms.grad(clipped))(torch.tensor([1.0, 5.0]))
        tensor([2., 3.])
    """

    missing = "defvjp"

    @functools.cached_property
    def _primal(self) -> Any:
        """The Function of ``fun``, for a call of which no derivative is asked."""
        fun = self.fun
        return self._make(
            {
                "forward": lambda *args: fun(*args),
                "setup_context": lambda ctx, inputs, output: None,
            }
        )

    def _choose(self, values: tuple[Any, ...]) -> Any:
        return self._function if differentiated(flatten(values)[0]) else self._primal

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rule: ``fwd`` and ``bwd`` as the class says."""
        self._bodies = Bodies(self.fun, fwd)

        def forward(ctx: Any, *args: Any) -> Any:
            output, ctx.residuals = as_pair(fwd(*args), self.fun, "fwd", "(output, residuals)")
            ctx.fixed, _ = self._divide(args)
            ctx.several = isinstance(output, tuple)
            return output

        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            cotangent = cotangents if ctx.several else cotangents[0]
            result = bwd(*ctx.fixed, ctx.residuals, cotangent)
            total = len(ctx.needs_input_grad)
            expected = total - len(self._nondiff)
            if not isinstance(result, tuple) or len(result) != expected:
                seen = f"{len(result)} of them" if isinstance(result, tuple) else describe(result)
                raise StructureError(
                    f"{name_of(self.fun)}: bwd must return a tuple with one gradient for each of "
                    f"the {expected} differentiable argument(s), got {seen}."
                )
            gradients = iter(result)
            return tuple([None if i in self._nondiff else next(gradients) for i in range(total)])

        self._define(forward=forward, backward=backward)


class custom_jvp(_Decorated):
    """A function with a forward rule of its own; reverse mode and vmap are derived.

    Args:
        fun: any function of pytrees.
        nondiff_argnums: positions of arguments that are not differentiated; the rule gets
            them first.

    ``f.defjvp(rule)`` sets ``rule(*nondiff, primals, tangents) -> (output, tangent)``, usable as a
    decorator; the output that it returns is not used, for ``fun`` is what runs.
    ``f.defjvps(*rules)`` sets one ``rule(tangent, output, *primals)`` for each argument, None for
    one without derivative; the tangents add up.

    Raises:
        RuleError: called before ``defjvp``.

    Example:
        >>> import torch, fxforms
        >>> @fxforms.custom_jvp
        ... def cube(x):
        ...     return x**3
        >>> cube.defjvps(lambda t, ans, x: 3 * x**2 * t)
        >>> fxforms.grad(cube)(torch.tensor(2.0))
        tensor(12.)
    """

    missing = "defjvp"

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule of all arguments."""

        def forward(ctx: Any, *args: Any) -> Any:
            ctx.args = args
            return self.fun(*args)

        def jvp(ctx: Any, *tangents: Any) -> Any:
            fixed, primals = self._divide(ctx.args)
            _, moving = self._divide(tangents)
            result = rule(*fixed, tuple(primals), tuple(moving))
            return as_pair(result, self.fun, "the jvp rule", "(output, tangent)")[1]

        self._define(forward=forward, jvp=jvp)
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Set one rule for each argument."""
        count = len(self._signature.parameters) - len(self._nondiff)
        if len(rules) != count:
            raise ArgumentError(
                f"{name_of(self.fun)}.defjvps takes {count} rules, one for each differentiable "
                f"argument (None where there is no derivative), got {len(rules)}."
            )

        def forward(ctx: Any, *args: Any) -> Any:
            ctx.args = args
            ctx.output = self.fun(*args)
            return ctx.output

        def jvp(ctx: Any, *tangents: Any) -> Any:
            parts = [
                rule(tangent, ctx.output, *ctx.args)
                for rule, tangent in zip(rules, self._divide(tangents)[1])
                if rule is not None
            ]
            if parts:
                return functools.reduce(add, parts)
            return (None,) * len(ctx.output) if isinstance(ctx.output, tuple) else None

        self._define(forward=forward, jvp=jvp)


def constant(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without derivative, of whichever order."""
    return tensor.detach()


def add(a: Any, b: Any) -> Any:
    """The sum of two pytrees of one structure."""
    flat_a, spec = flatten(a)
    return spec.unflatten([x + y for x, y in zip(flat_a, flatten(b)[0])])
