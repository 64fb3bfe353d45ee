"""The rule record of a Function: resolved once, when its class is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import GradientError, RuleError
from fxforms.functions.call import bind
from fxforms.functions.context import RuleContext, among
from fxforms.functions.derive import Mapping, mapped_class
from fxforms.functions.once import DifferentiatedOnce, is_once_differentiable, run_once
from fxforms.functions.single_level import apply_single_level, context_class, single_level_class
from fxforms.interpreters import VmapInfo

_BASE = torch.autograd.Function


class FunctionRules:
    """What each interpreter asks of one Function class, and how the class is called."""

    def __init__(self, function: Any) -> None:
        self.function = function
        function._rules = self
        self.__name__: str = function.__name__
        self.combined = function.setup_context is _BASE.setup_context
        self.backward = self._given("backward", "vjp")
        self.jvp = self._given("jvp")
        self.vmap = self._given("vmap")
        self.generates_vmap: bool = function.generate_vmap_rule
        self.once = is_once_differentiable(self.backward)
        self._check()
        self._signature = signature_of(function.forward, self.combined)
        self.arity = fixed_arity(self._signature)
        function._backward_cls = context_class(self, function)
        self.evaluate: Callable[..., Any] = substrate.autograd_apply(function)

    def _given(self, *names: str) -> Callable[..., Any] | None:
        """The rule of one of these names that the class defines, None if it defines none."""
        rules = [(getattr(self.function, name), getattr(_BASE, name)) for name in names]
        found = [rule for rule, inherited in rules if rule is not inherited]
        if len(found) > 1:
            raise RuleError(
                f"{self.__name__} defines both {' and '.join(names)}, which are two names of one "
                f"rule. Keep one."
            )
        return found[0] if found else None

    def _check(self) -> None:
        """Raise RuleError if the class contradicts itself."""
        if self.generates_vmap and self.vmap is not None:
            raise RuleError(
                f"{self.__name__} has generate_vmap_rule=True and a vmap rule of its own. Keep one."
            )

    @cached_property
    def node(self) -> Any:
        """The single-level Function, made at the first differentiated call."""
        return single_level_class(self)

    @cached_property
    def mapped(self) -> FunctionRules:
        """This Function mapped over a batch, made at the first derived vmap."""
        return FunctionRules(mapped_class(self))

    def bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The operands of a call: keywords and defaults in their place by forward's signature."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}.apply: {error}; forward{self._signature}") from None
        bound.apply_defaults()
        return bound.args

    def bind(self, *operands: Any) -> Any:
        """The operator, at the level now on top."""
        return bind(self, operands)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The user's ``setup_context``."""
        if self.combined:
            raise RuleError(
                f"{self.__name__} writes forward(ctx, ...) and has no setup_context, which "
                f"differentiating it under a transform needs. Write forward without ctx, and move "
                f"what it did with ctx to setup_context(ctx, inputs, output)."
            )
        self.function.setup_context(ctx, inputs, output)

    def grad_rule(self, *operands: Any) -> Any:
        """A node of this Function in the graph of the top level."""
        if self.combined:
            self.setup_context(None, operands, None)
        return apply_single_level(self.node, operands)

    def jvp_rule(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """Outputs and their tangents, by the user's ``jvp``."""
        if self.jvp is None:
            raise RuleError(
                f"{self.__name__} has no jvp rule, which forward mode (jvp, jacfwd, hessian) "
                f"needs. Add a jvp staticmethod, or use reverse mode (vjp, jacrev)."
            )
        ctx = RuleContext(tuple([tangent is not None for tangent in tangents]))
        outputs = self.bind(*primals)
        self.setup_context(ctx, primals, outputs)
        if ctx._materialize:
            tangents = tuple([materialize(p, t) for p, t in zip(primals, tangents)])
        result = self.jvp(ctx, *tangents)
        return finish_jvp(ctx, primals, outputs, result)

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> Any:
        """The user's ``vmap``, or the Function mapped over the batch."""
        if self.vmap is not None:
            return self.vmap(info, in_dims, *operands)
        if self.generates_vmap:
            mapping = Mapping(info, in_dims)
            outputs = self.mapped.bind(mapping, *operands)
            return outputs, mapping.out_dims
        raise RuleError(
            f"{self.__name__} has no vmap rule. Set generate_vmap_rule = True if its methods are "
            f"written in torch operations, or add vmap(info, in_dims, *args)."
        )

    def run_backward(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The user's ``backward``, as one gradient for each input."""
        if self.backward is None:
            raise RuleError(
                f"{self.__name__} has no backward rule, which reverse mode (grad, vjp, jacrev, "
                f".backward()) needs. Add a backward staticmethod, or use forward mode (jvp)."
            )
        if self.once:
            result = run_once(self.__name__, self.backward, ctx, cotangents)
        else:
            result = self.backward(ctx, *cotangents)
        gradients = result if isinstance(result, tuple) else (result,)
        self._check_count(gradients, len(ctx.needs_input_grad))
        return gradients

    def _check_count(self, gradients: tuple[Any, ...], count: int) -> None:
        """Raise GradientError unless there is one gradient for each input of forward."""
        if len(gradients) == count or (
            len(gradients) > count and all(g is None for g in gradients[count:])
        ):
            return
        names = ", ".join(self._signature.parameters)
        raise GradientError(
            f"{self.__name__}.backward returned {counted(len(gradients), 'gradient')} for "
            f"{counted(count, 'input')} ({names}). Return one for each input of forward, None for "
            f"one that has no gradient."
        )


def counted(count: int, noun: str) -> str:
    """``count`` and ``noun``, in the plural if need be."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def signature_of(forward: Callable[..., Any], combined: bool) -> inspect.Signature:
    """The signature by which ``apply`` is called: forward's positional parameters, without ctx."""
    signature = inspect.signature(forward)
    kept = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise RuleError(
                f"{forward.__qualname__} needs the keyword-only parameter {parameter.name!r}. The "
                f"operands of a Function are positional: drop the '*' (a caller may still name it)."
            )
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            kept.append(parameter)
    drop_ctx = combined and kept and kept[0].kind is not inspect.Parameter.VAR_POSITIONAL
    return signature.replace(parameters=kept[1:] if drop_ctx else kept)


def fixed_arity(signature: inspect.Signature) -> int | None:
    """How many positional operands make a complete call, None if that varies."""
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return len(parameters)


def materialize(primal: Any, tangent: torch.Tensor | None) -> torch.Tensor | None:
    """``tangent``, or zeros for a tensor without one."""
    if tangent is None and isinstance(primal, torch.Tensor):
        return torch.zeros_like(primal)
    return tangent


def finish_jvp(
    ctx: RuleContext, primals: tuple[Any, ...], outputs: Any, tangents: Any
) -> tuple[Any, Any]:
    """Outputs and tangents with what ``ctx`` declares applied, in one structure."""
    single = not isinstance(outputs, tuple)
    flat = (outputs,) if single else outputs
    flat_tangents = list(tangents) if isinstance(tangents, tuple) else [tangents]
    values = []
    for index, output in enumerate(flat):
        if isinstance(output, torch.Tensor) and index < len(flat_tangents):
            if among(output, ctx._dirty):
                flat_tangents[index] = materialize(output, flat_tangents[index])
            elif among(output, primals):
                output = output.view_as(output)
            if among(flat[index], ctx._non_differentiable):
                flat_tangents[index] = None
        values.append(output)
    return (values[0] if single else tuple(values)), tuple(flat_tangents)


FunctionRules(DifferentiatedOnce)
