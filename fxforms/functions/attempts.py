"""Bodies and rules run on a whole batch, and one call a sample where one of them cannot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import RuleError
from fxforms.functions.bind import bind, bind_lower, live
from fxforms.functions.context import RuleContext, as_tuple
from fxforms.functions.derive import keep_for_transpose
from fxforms.functions.faults import no_vmap_rule, overwritten, refuse_opaque, values_of_samples
from fxforms.functions.inline import only_vmaps, run_untracked
from fxforms.functions.loop import Unmappable, loop, loop_rule, warn_once
from fxforms.functions.opaque import ValueNeeded, below_all, stage_rule
from fxforms.functions.rule_runs import may_record, run_recorded
from fxforms.functions.unseen import is_unmappable
from fxforms.interpreters import Primitive, VmapInfo, below_all_levels


def copied(operands: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """Copies of the plain tensors under ``operands``; None while operations are traced."""
    if substrate.dispatch_modes():
        return None
    with below_all_levels(), torch.no_grad():
        return [substrate.physical(x).clone() for x in operands if isinstance(x, torch.Tensor)]


def put_back(operands: tuple[Any, ...], copies: list[torch.Tensor]) -> None:
    """Undo what a body has changed in ``operands``."""
    tensors = [substrate.physical(x) for x in operands if isinstance(x, torch.Tensor)]
    with below_all_levels(), torch.no_grad():
        for tensor, copy in zip(tensors, copies):
            with substrate.preserve_version(tensor):
                tensor.copy_(copy)


class Attempts(Primitive, ABC):
    """The part of a rule record that runs what may not map; ``loops`` once that is known."""

    __name__: str
    function: Any
    combined: bool
    loops: bool
    splits: bool
    root: Any
    transposes_jvp: bool
    vmap: Callable[..., Any] | None
    first_vmap: Callable[..., Any] | None  # that of the class, or of the one it is split from
    vmap_method: str
    last_shared: Any = None  # the SharedRecord of the last mapped call

    @abstractmethod
    def bind(self, *operands: Any) -> Any:
        """The operator, at the level now on top."""

    def maps(self, operands: tuple[Any, ...]) -> bool:
        """True if there are vmap levels alone, and the class has no other rule for them."""
        return self.first_vmap is None and not self.loops and only_vmaps(operands)

    def run_mapped(self, operands: tuple[Any, ...]) -> Any:
        """The body under vmap levels alone, at the level of the call.

        Raises:
            Unmappable: it cannot run on a batch.
        """
        if self.vmap_method == "error":
            raise no_vmap_rule(self.__name__)
        given = live(operands)
        if self.combined:
            given = (RuleContext((False,) * len(given)), *given)

        def body() -> Any:
            try:
                return run_untracked(self.function.forward, given)
            except ValueNeeded:
                if self.combined:
                    raise
                return bind(self, operands)  # one call node for the batch

        return self.attempt(operands, body)

    def bind_at_level(self, operands: tuple[Any, ...]) -> Any:
        """The operator below the level of a rule, in the split form."""
        if self.maps(operands):
            try:
                return self.run_mapped(operands)
            except Unmappable:  # from here on the batch is looped over
                pass
        return bind_lower(self, operands)

    def forward_with_ctx(self, ctx: Any, *operands: Any) -> Any:
        """The user's ``forward`` in the combined form, and what a derived backward needs."""
        output = self.function.forward(ctx, *operands)
        if self.transposes_jvp:
            keep_for_transpose(ctx, operands)
        return output

    def run_with_ctx(self, ctx: Any, operands: tuple[Any, ...]) -> Any:
        """A ``forward`` in the combined form, at a level where nothing differentiates."""
        given = (ctx, *live(operands))
        run = partial(run_untracked, self.forward_with_ctx, given)
        return self.attempt(given, run) if substrate.transforms_active() else run()

    def loop_over(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """One call a sample."""
        return loop(self.bind, self.__name__, info, in_dims, operands)

    def attempt(self, operands: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """``run()``, which runs bodies on batched tensors; raises Unmappable if one cannot.

        Once that is known of a class, all its batches are looped over. Until one has been mapped
        there are copies, for a body may change an input and then prove unmappable.
        """
        versions = substrate.versions(operands)
        copies = None if self.root.has_mapped else copied(operands)
        try:
            result = run()
        except RuntimeError as error:
            self.loop_because(error)
            if versions != substrate.versions(operands):
                if copies is None:
                    raise overwritten(self.__name__) from error
                put_back(operands, copies)
            raise Unmappable from error
        self.root.has_mapped = True
        return result

    def loop_because(self, error: RuntimeError) -> None:
        """Loop over batches from now on if ``error`` says that a body cannot be mapped."""
        if isinstance(error, RuleError) or not is_unmappable(error):
            raise error
        if not self.root.loops:
            warn_once(self.__name__, error)
        self.loops = self.root.loops = True

    def note_residuals(self) -> None:
        """A call has shown that this class hides a residual: split it from here on."""
        self.splits = self.root.splits = True
        self.root.saves_no_residual = False

    def run_rule(
        self, rule: Callable[..., Any], ctx: Any, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """A user's rule; one call a sample where it cannot run on a batch."""
        if getattr(ctx, "_fx_samples", None) is None:
            try:
                if self.root.calls_engine is not False and may_record():
                    return as_tuple(run_recorded(self.root, rule, ctx, args))
                return as_tuple(rule(ctx, *args))
            except RuntimeError as error:
                if isinstance(error, ValueNeeded) and below_all(ctx, args):
                    return stage_rule(error.stage, rule, ctx, args)
                if not substrate.on_vmap_level():
                    refuse_opaque(self.__name__, error)
                    raise
                self.loop_because(error)
        elif not substrate.on_vmap_level():
            raise values_of_samples(self.__name__)
        return loop_rule(self.__name__, lambda c, a: self.run_rule(rule, c, a), ctx, args)
