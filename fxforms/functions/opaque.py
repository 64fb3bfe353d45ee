"""A body that a tracer cannot see through becomes one call node of its graph.

The tracer is in a higher room: what it raises where a body asks for the value of a traced tensor
carries how to make the node, so nothing here knows of it and no other call pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from fxforms import _substrate as substrate
from fxforms._tree import leaves
from fxforms.errors import TraceError
from fxforms.functions.context import RuleContext, as_tuple, attributes_of
from fxforms.functions.contract import Rules


class Tracer(Protocol):
    """What a tracer can do where a value is needed that it does not have."""

    def stage(self, body: Callable[..., Any], operands: Any) -> Any:
        """Put a call of ``body`` into the graph; the traced outputs.

        ``operands`` is a pytree, ``body`` takes it as its arguments.
        """

    def choose(
        self, pred: torch.Tensor, branches: Any, operands: tuple[torch.Tensor, ...], again: bool
    ) -> tuple[torch.Tensor, ...]:
        """Put a choice between two flat functions into the graph; the traced outputs.

        ``again``: they repeat what has run before.
        """

    def aside(self) -> AbstractContextManager[Any]:
        """A context in which nothing is put into the graph."""

    def is_aside(self) -> bool:
        """True in such a context."""

    def is_known(self, tensor: torch.Tensor) -> bool:
        """True for a tensor of the graph, and for a real one; False for what is made aside."""


class ValueNeeded(TraceError):
    """A traced tensor was asked for its value; ``tracer`` knows what may be done instead."""

    def __init__(self, text: str, tracer: Tracer) -> None:
        super().__init__(text)
        self.tracer = tracer

    @property
    def stage(self) -> Callable[..., Any]:
        """How to put a call into the graph."""
        return self.tracer.stage


def opaque_class(rules: Rules, stage: Callable[..., Any]) -> Any:
    """The class of ``rules`` with its forward as one call node; the other rules are its own."""
    source = rules.function

    def forward(*operands: Any) -> Any:
        return stage(source.forward, operands)

    methods: dict[str, Any] = {"forward": forward, "setup_context": source.setup_context}
    if rules.backward is not None:
        methods["backward"] = rules.backward
    if rules.jvp is not None:
        methods["jvp"] = rules.jvp
    return substrate.make_function(rules.__name__, source.__base__, methods)


def below_all(ctx: Any, args: tuple[Any, ...]) -> bool:
    """True if no tensor that a rule works on is of a level, whichever levels are active."""
    given = leaves((ctx.saved_tensors, attributes_of(ctx), args))
    return not any(isinstance(x, torch.Tensor) and substrate.is_wrapped(x) for x in given)


def stage_rule(
    stage: Callable[..., Any], rule: Callable[..., Any], ctx: Any, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """``rule(ctx, *args)`` as one call node: what it reads of ``ctx`` goes in with ``args``."""
    lowered, needs = ctx._fx_lowered, tuple(ctx.needs_input_grad)

    def body(saved: Any, attributes: dict[str, Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        own = RuleContext(needs, lowered)
        own.to_save = saved
        vars(own).update(attributes)
        return as_tuple(rule(own, *args))

    result: tuple[Any, ...] = stage(body, (ctx.saved_tensors, attributes_of(ctx), args))
    return result
