"""The first call of a class outside of any transform: what it saves and returns tells its kind.

If the output has containers the call goes on in the packed form, with what ``forward`` has
computed: it may have changed an input or drawn numbers, and must not run twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.functions.context import as_tuple, attributes_of
from fxforms.functions.contract import Rules
from fxforms.functions.packed import RETURNED, has_trees
from fxforms.functions.plain_residuals import keeps_residuals, remember, sources_of
from fxforms.functions.residuals import Noted
from fxforms.functions.single_level import carrier_class, context_class

_MARKS = ("dirty_tensors", "non_differentiable", "to_save", "saved_for_forward")
_SETTERS = ("mark_dirty", "mark_non_differentiable", "save_for_backward", "save_for_forward")


class ContainerFound(Exception):
    """A ``forward`` that has run returned a container."""

    def __init__(self, output: Any, ctx: Any) -> None:
        super().__init__()
        self.output = output
        self.ctx = ctx

    def take(self, ctx: Any) -> Any:
        """The output; what ``forward`` left on its ``ctx`` goes to ``ctx``."""
        if self.ctx is not None:
            for name, setter in zip(_MARKS, _SETTERS):
                getattr(ctx, setter)(*(getattr(self.ctx, name) or ()))
            for name, value in attributes_of(self.ctx).items():
                setattr(ctx, name, value)
            ctx.set_materialize_grads(getattr(self.ctx, "_fx_materialize", True))
        return self.output


def applied(rules: Rules, looks: bool) -> Callable[..., Any]:
    """The Function under plain autograd; if it ``looks``, up to the first call that succeeds."""
    carrier = carrier_class(rules)
    apply: Callable[..., Any] = substrate.autograd_apply(carrier)

    def first(*operands: Any) -> Any:
        kept: list[bool] = []
        dirty: list[bool] = []
        looking = looking_class(rules, carrier, kept, dirty)
        looking._backward_cls = context_class(rules, looking)
        sources = sources_of(operands)
        output = substrate.autograd_apply(looking)(*operands)
        rules.evaluate = apply
        if any(kept):
            rules.evaluate = overwriting if any(dirty) else remembering
            remember(rules, output, operands, sources)
        return output

    def remembering(*operands: Any) -> Any:
        output = apply(*operands)
        remember(rules, output, operands, None)
        return output

    def overwriting(*operands: Any) -> Any:
        sources = sources_of(operands)
        output = apply(*operands)
        remember(rules, output, operands, sources)
        return output

    return first if looks else apply


def looking_class(rules: Rules, carrier: Any, kept: list[bool], dirty: list[bool]) -> Any:
    """``carrier``, whose ``forward`` raises ContainerFound if there is one in the output.

    ``kept`` is told whether residuals are saved, ``dirty`` whether an input is overwritten.
    """

    noted = Noted()

    def look(ctx: Any, operands: tuple[Any, ...], output: Any) -> None:
        kept.append(keeps_residuals(ctx, operands, output, noted.left_torch))
        dirty.append(bool(ctx.dirty_tensors))

    def forward(*args: Any) -> Any:
        with noted:
            output = carrier.forward(*args)
        if not isinstance(output, torch.Tensor) and has_trees(as_tuple(output), RETURNED):
            raise ContainerFound(output, args[0] if rules.combined else None)
        if rules.combined:
            look(args[0], args[1:], output)
        return output

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        with noted:
            carrier.setup_context(ctx, inputs, output)
        look(ctx, inputs, output)

    methods: dict[str, Any] = {"forward": forward}
    if not rules.combined:
        methods["setup_context"] = setup_context
    if rules.jvp is not None:
        methods["jvp"] = rules.jvp
    return substrate.make_function(rules.__name__, torch.autograd.Function, methods)
