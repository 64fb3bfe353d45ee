"""The rule record of a Function: resolved once, when its class is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.functions.attempts import Attempts
from fxforms.functions.bind import bind, bind_lower, check_unchanged, live, traced_versions
from fxforms.functions.closures import closing
from fxforms.functions.combined import loop_split, set_up_split, split_backward, split_class
from fxforms.functions.context import RuleContext, as_tuple, finish_jvp, kept_tangents, materialize
from fxforms.functions.declared import check, given
from fxforms.functions.derive import (
    backward_from_jvp,
    jvp_from_backward,
    keep_for_transpose,
    tangent_likes,
)
from fxforms.functions.faults import (
    check_count,
    no_derivative,
    no_vmap_rule,
    values_in_graph,
)
from fxforms.functions.first_call import applied
from fxforms.functions.inline import last_jvp, run_untracked, tracked_outside
from fxforms.functions.loop import Unmappable
from fxforms.functions.mapped import mapped_class, run_backward
from fxforms.functions.mapping import Mapping, SharedRecord
from fxforms.functions.once import (
    DifferentiatedOnce,
    is_once_differentiable,
    marked_once,
    run_once,
    undecorated,
)
from fxforms.functions.opaque import ValueNeeded, opaque_class
from fxforms.functions.packed import packed_class
from fxforms.functions.plain_residuals import backward_again
from fxforms.functions.recorded import Call
from fxforms.functions.signature import Signature
from fxforms.functions.single_level import (
    apply_single_level,
    run_setup,
    single_level_class,
)
from fxforms.functions.unseen import Followed
from fxforms.interpreters import VmapInfo

_BASE = torch.autograd.Function


class FunctionRules(Attempts):
    """What each interpreter asks of one Function class, and how the class is called.

    A class in another form than the interpreters take (``ctx`` in ``forward``, pytrees) is called
    through a derived class in that form, with rules of its own: :attr:`split`, :attr:`packed`,
    :attr:`mapped`. Each is made at its first use.
    """

    def __init__(
        self, function: Any, root: FunctionRules | None = None, watches: bool = True
    ) -> None:
        """``root``: the rules these are derived from. ``watches``: may hide a residual."""
        self.root: FunctionRules = root or self
        self.function = function
        function._rules = self
        self.__name__: str = function.__name__
        self.combined = function.setup_context is _BASE.setup_context
        self.backward = given(function, "backward", "vjp")
        self.jvp = given(function, "jvp")
        self.vmap = self.first_vmap = given(function, "vmap")
        self.vmap_method: str = getattr(function, "vmap_method", "derive")
        check(function, self.vmap, self.vmap_method)
        self.once = marked_once(self.__name__) if is_once_differentiable(self.backward) else None
        self.transposes_jvp = self.backward is None and self.jvp is not None
        self.loops = self.vmap_method == "loop"
        self.splits: bool = self.combined or (root is not None and root.splits)
        self.splits_always: bool = getattr(function, "splits_always", False)
        self.packs: bool | None = None if root is None else False
        self.saves_no_residual: bool | None = None
        self.watches = watches
        self.leaves_torch: bool | None = None
        self.shares_setup: bool | None = None
        self.setup_is_known = self.has_mapped = False
        self.changes_inputs: bool | None = None
        self.calls_engine: bool | None = None
        self.detaches: bool | None = None
        self.may_hide = True
        methods = [function.forward, function.setup_context, self.backward, self.jvp, self.vmap]
        self.closing = closing(methods if root is None else [])
        self.signature = Signature(function, self.combined)
        self.arity = self.signature.arity
        self.evaluate: Callable[..., Any] = applied(self, looks=root is None)

    @cached_property
    def node(self) -> Any:
        """The single-level Function."""
        return single_level_class(self)

    @cached_property
    def mapped(self) -> FunctionRules:
        """This Function on a batch."""
        return MappedRules(self)

    @cached_property
    def packed(self) -> FunctionRules:
        """This Function on the leaves of its arguments."""
        rules = FunctionRules(packed_class(self), self.root)
        rules.evaluate = applied(rules, looks=True)
        return rules

    @cached_property
    def split(self) -> FunctionRules:
        """This Function without ``ctx`` in ``forward``."""
        return SplitRules(self)

    def bind(self, *operands: Any) -> Any:
        """The operator, called by a rule one level up.

        Where nothing differentiates any more the body needs no ``ctx``.
        """
        if self.combined:
            return bind(self, operands)
        if substrate.transforms_active():
            return self.bind_at_level(operands)
        if not tracked_outside(operands):
            versions = traced_versions(operands)
            try:
                return run_untracked(self.function.forward, live(operands))
            except ValueNeeded as error:
                check_unchanged(self, operands, versions)
                return self.staged(error, operands)
        return bind(self, operands)

    def staged(self, error: ValueNeeded, operands: Sequence[Any]) -> Any:
        """``forward`` as one call node of the graph that is being traced."""
        if self.combined:  # the residuals must be outputs of the node: enter splits it
            raise error
        staged = FunctionRules(opaque_class(self, error.stage), self.root, watches=False)
        return staged.evaluate(*live(tuple(operands)))

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The user's ``setup_context``, and what a derived backward needs beside it."""
        self.function.setup_context(ctx, inputs, output)
        if self.transposes_jvp:
            keep_for_transpose(ctx, inputs)

    def share_setup(self, ctx: Any, operands: tuple[Any, ...], outputs: Any) -> bool:
        """False: ``setup_context`` runs at every level, and can be differentiated there."""
        return False

    def grad_rule(self, *operands: Any) -> Any:
        """A node of this Function in the graph of the top level."""
        return apply_single_level(self.node, operands)

    def jvp_rule(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """Outputs and their tangents, by the user's ``jvp`` or from ``backward``."""
        if self.jvp is None and self.backward is None:
            raise no_derivative(self.__name__, "forward mode (jvp, jacfwd)")
        ctx = RuleContext(tuple([tangent is not None for tangent in tangents]), lowered=True)
        if self.combined:
            outputs = self.run_with_ctx(ctx, primals)
        else:
            outputs = self.bind(*primals)
            is_last = partial(last_jvp, primals)
            run_setup(self, self.function.setup_context, ctx, primals, outputs, is_last)
        flat = as_tuple(outputs)
        tangents = kept_tangents(ctx, primals, tangents)
        if self.jvp is None:
            ctx.saved_for_forward = None  # what runs is backward
            likes = tangent_likes(ctx, flat)
            result = self.run_rule(
                lambda ctx, *given: jvp_from_backward(self, ctx, likes, given), ctx, tangents
            )
        else:
            if ctx.materialize_grads:
                tangents = tuple([materialize(p, t) for p, t in zip(primals, tangents)])
            result = self.run_rule(self.jvp, ctx, tangents)
        return finish_jvp(ctx, primals, tangents, outputs, result)

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> Any:
        """The user's ``vmap``, or the Function mapped over the batch, or a loop."""
        if self.vmap is not None:
            return self.vmap(info, in_dims, *operands)
        if self.vmap_method == "error":
            raise no_vmap_rule(self.__name__)
        if not self.loops:
            mapping = Mapping(info, in_dims)
            try:
                run = partial(bind_lower, self.mapped, (mapping, *operands))
                outputs = self.attempt(operands, run)
                return outputs, mapping.out_dims
            except Unmappable:
                pass
        return self.loop_over(info, in_dims, operands)

    def run_backward(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """One gradient for each input, by the user's ``backward`` or from ``jvp``."""
        if self.once:
            return run_once(self.once, self.gradients, ctx, cotangents)
        return self.gradients(ctx, cotangents)

    backward_again = backward_again  # for the node, which does not import it

    def gradients(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same, as the rule is written, whether or not it may be differentiated again."""
        found = self._user_gradients(ctx, cotangents)
        return check_count(self.__name__, self.signature, found, len(ctx.needs_input_grad))

    def _user_gradients(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the user's rule returns, as a tuple."""
        if self.backward is None:
            if self.jvp is None:
                raise no_derivative(self.__name__, "reverse mode (grad, vjp, jacrev, .backward())")
            derived = lambda ctx, *given: backward_from_jvp(self, ctx, given)  # noqa: E731
            return self.run_rule(derived, ctx, cotangents)
        return self.run_rule(undecorated(self.backward), ctx, cotangents)


class MappedRules(FunctionRules):
    """The rules of a mapped Function; operand 0 of a call is its Mapping."""

    def __init__(self, source: FunctionRules) -> None:
        super().__init__(mapped_class(source), source.root, source.watches)
        self.source = source

    def gradients(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of the source's rule, which has checked them and met what does not map."""
        if self.backward is None:
            return super().gradients(ctx, cotangents)
        return run_backward(self.source, ctx, cotangents)

    def share_setup(self, ctx: Any, operands: tuple[Any, ...], outputs: Any) -> bool:
        """True if ``forward`` has found that all of it is inputs, outputs and plain values."""
        shared: SharedRecord | None = operands[0].shared
        if shared is None or self.transposes_jvp:
            return False
        shared.save(ctx, operands, outputs, forward=False)
        return True


class SplitRules(FunctionRules):
    """The rules of a split Function; operand 0 of a call is its Call."""

    def __init__(self, source: FunctionRules) -> None:
        super().__init__(split_class(source), source.root, watches=False)
        self.source = source
        self.first_vmap = source.vmap

    def staged(self, error: ValueNeeded, operands: Sequence[Any]) -> Any:
        """``forward`` as one call node; what it leaves on ``ctx`` must be tensors."""
        outputs = super().staged(error, operands)
        call: Call = operands[0]
        call.drawn = None  # that of the trial run
        if call.keeps_values():
            raise values_in_graph(self.__name__)
        return outputs

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> Any:
        """The user's ``vmap`` where no level above needs residuals, else the derived rule."""
        call: Call = operands[0]
        if self.source.vmap is None or substrate.level_depth() + 1 < call.depth:
            return super().vmap_rule(info, in_dims, operands)
        output, out_dims = self.source.vmap(info, in_dims[1:], *operands[1:])
        call.single = not isinstance(output, tuple)
        outputs = as_tuple(output)
        call.count = len(outputs)
        return outputs, (out_dims,) if call.single else out_dims

    def loop_over(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """One call a sample, each with a record of its own."""
        return loop_split(self.bind, self.__name__, info, in_dims, operands)

    def gradients(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Those of the source's rule; only what is made of residuals may still not map."""
        call: Call = ctx._fx_call
        if self.backward is None or call.residual_likes or call.unseen or call.samples:
            return super().gradients(ctx, cotangents)
        return (None, *split_backward(self.source, ctx, cotangents))

    def share_setup(self, ctx: Any, operands: tuple[Any, ...], outputs: Any) -> bool:
        """True: no level runs any code of the user's for it."""
        set_up_split(operands[0], ctx, operands[1:], as_tuple(outputs), forward=False)
        return True


FunctionRules(DifferentiatedOnce).packs = False
FunctionRules(Followed).packs = False
