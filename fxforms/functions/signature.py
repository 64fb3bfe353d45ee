"""The signature by which a Function is called: ``forward``'s positional parameters."""

from __future__ import annotations

import inspect
from typing import Any

from fxforms.errors import RuleError


class Signature:
    """How the arguments of ``apply`` become operands, all positional."""

    def __init__(self, function: Any, combined: bool) -> None:
        self._name = function.__name__
        self._combined = combined
        self._signature = _positional(function, combined)
        every = inspect.signature(function.forward).parameters.values()
        self._by_keyword = {p.name for p in every if p.kind is p.KEYWORD_ONLY}
        parameters = self._signature.parameters.values()
        varies = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.arity = None if varies else len(parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The operands of a call, keywords and defaults in their place.

        As in torch, the combined form gets no defaults: its backward answers for what was given.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(self._explain(error, kwargs)) from None
        if self._combined and not kwargs:
            return args
        bound.apply_defaults()
        return bound.args

    def _explain(self, error: TypeError, kwargs: dict[str, Any]) -> str:
        """What to say of arguments that do not fit."""
        named = next((name for name in kwargs if name in self._by_keyword), None)
        if named is not None:
            return (
                f"{self._name}.apply was given the keyword-only parameter {named!r} of forward. "
                f"The operands of a Function are positional: drop the '*' (a caller may still name "
                f"it)."
            )
        text = f"{self._name}.apply: {error}; forward takes {self._signature}"
        if not self._combined:
            return f"{text}."
        return (
            f"{text} after ctx. Without a setup_context, forward's first parameter is ctx. Add "
            f"setup_context(ctx, inputs, output), or write forward(ctx, ...)."
        )

    def names(self, count: int) -> list[str]:
        """The names of ``count`` operands."""
        names = [
            p.name for p in self._signature.parameters.values() if p.kind is not p.VAR_POSITIONAL
        ]
        return (names + [f"argument {i}" for i in range(len(names), count)])[:count]


def _positional(function: Any, combined: bool) -> inspect.Signature:
    """``forward``'s signature without ctx and without what ``apply`` cannot pass."""
    signature = inspect.signature(function.forward)
    kept = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise RuleError(
                f"{function.__name__}.forward needs the keyword-only parameter "
                f"{parameter.name!r}. The operands of a Function are positional: drop the '*' (a "
                f"caller may still name it)."
            )
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            kept.append(parameter)
    drop_ctx = combined and kept and kept[0].kind is not inspect.Parameter.VAR_POSITIONAL
    return signature.replace(parameters=kept[1:] if drop_ctx else kept)
