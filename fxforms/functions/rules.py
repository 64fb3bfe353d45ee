"""The rule record of a Function: resolved once, when its class is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import RuleError
from fxforms.functions.call import bind, live
from fxforms.functions.combined import Call, split_class
from fxforms.functions.context import RuleContext, finish_jvp, materialize
from fxforms.functions.derive import backward_from_jvp, jvp_from_backward, keep_for_transpose
from fxforms.functions.faults import check_count, no_derivative, no_vmap_rule
from fxforms.functions.inline import one_grad, only_vmaps, run_untracked
from fxforms.functions.loop import is_unmappable, loop, warn_once
from fxforms.functions.mapped import Mapping, mapped_class
from fxforms.functions.once import DifferentiatedOnce, is_once_differentiable, run_once
from fxforms.functions.packed import Packing, has_trees, packed_class
from fxforms.functions.signature import Signature
from fxforms.functions.single_level import (
    HiddenResidual,
    apply_single_level,
    context_class,
    single_level_class,
)
from fxforms.interpreters import VmapInfo

_BASE = torch.autograd.Function
VMAP_METHODS = ("derive", "loop", "error")


class FunctionRules:
    """What each interpreter asks of one Function class, and how the class is called.

    A class in another form than the interpreters take (``ctx`` in ``forward``, pytrees) is called
    through a derived class in that form, with rules of its own: :attr:`split`, :attr:`packed`,
    :attr:`mapped`. Each is made at its first use.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        function._rules = self
        self.__name__: str = function.__name__
        self.combined = function.setup_context is _BASE.setup_context
        self.backward = self._given("backward", "vjp")
        self.jvp = self._given("jvp")
        self.vmap = self._given("vmap")
        self.vmap_method: str = getattr(function, "vmap_method", "derive")
        self._check()
        self.once = is_once_differentiable(self.backward)
        self.transposes_jvp = self.backward is None and self.jvp is not None
        self.loops = self.vmap_method == "loop"
        self.splits = self.combined
        self.splits_always: bool = getattr(function, "splits_always", False)
        self.packs = False
        self.hides_nothing = False
        self.signature = Signature(function, self.combined)
        self.arity = self.signature.arity
        self.evaluate: Callable[..., Any] = substrate.autograd_apply(self._carrier())

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
        if self.function.generate_vmap_rule and self.vmap is not None:
            raise RuleError(
                f"{self.__name__} has generate_vmap_rule=True and a vmap rule of its own. Keep one."
            )
        if self.vmap_method not in VMAP_METHODS:
            raise RuleError(
                f"{self.__name__} has vmap_method={self.vmap_method!r}; it must be one of "
                f"{', '.join(map(repr, VMAP_METHODS))}."
            )

    def _carrier(self) -> Any:
        """The class that plain autograd runs: the user's, unless its backward is derived."""
        carrier = self.function
        if self.transposes_jvp:
            methods: dict[str, Any] = {"forward": self.function.forward, "jvp": self.function.jvp}
            if self.combined:
                methods["forward"] = self.forward_with_ctx
            else:
                methods["setup_context"] = self.setup_context
            attributes = {name: staticmethod(method) for name, method in methods.items()}
            carrier = substrate.make_function(self.__name__, _BASE, attributes)
        carrier._backward_cls = context_class(self, carrier)
        return carrier

    def describe(self) -> dict[str, str]:
        """For each rule: given, derived from what, or absent and why."""
        absent = "absent: neither backward nor jvp is given"
        vmap = {
            "derive": "derived: forward and the other rules mapped over the batch",
            "loop": 'derived: one call a sample (vmap_method = "loop")',
            "error": 'absent: vmap_method = "error"',
        }[self.vmap_method]
        if self.loops and self.vmap_method == "derive":
            vmap = "derived: one call a sample, for a body cannot be mapped"
        backward = "given" if self.backward else "derived: jvp transposed" if self.jvp else absent
        jvp = "given" if self.jvp else "derived: backward transposed" if self.backward else absent
        if self.once:
            backward = "given, once differentiable"
        return {"backward": backward, "jvp": jvp, "vmap": "given" if self.vmap else vmap}

    @cached_property
    def node(self) -> Any:
        """The single-level Function."""
        return single_level_class(self)

    @cached_property
    def mapped(self) -> FunctionRules:
        """This Function on a batch."""
        mapped = FunctionRules(mapped_class(self))
        mapped.hides_nothing = self.hides_nothing
        return mapped

    @cached_property
    def packed(self) -> FunctionRules:
        """This Function on the leaves of its arguments."""
        return FunctionRules(packed_class(self))

    @cached_property
    def split(self) -> FunctionRules:
        """This Function without ``ctx`` in ``forward``."""
        return SplitRules(self)

    def enter(self, operands: tuple[Any, ...]) -> Any:
        """A call by the user, in whichever form the class and the operands have."""
        active = substrate.transforms_active()
        if active and self.vmap is None and not self.loops and only_vmaps(operands):
            try:
                return self._enter_inline(operands)
            except RuntimeError as error:
                self.loop_because(error)
        if self.packs or has_trees(operands):
            return self._enter_packed(operands)
        if self.splits and (active or self.splits_always) and not one_grad(operands):
            return self._enter_split(operands)
        try:
            output = bind(self, operands)
        except HiddenResidual:
            self.splits = True  # known from here on
            return self._enter_split(operands)
        if isinstance(output, torch.Tensor):
            return output
        if has_trees(output if isinstance(output, tuple) else (output,)):
            self.packs = True  # seen once: from here on the containers are opened first
            return self._enter_packed(operands)
        return output

    def _enter_inline(self, operands: tuple[Any, ...]) -> Any:
        """A call under vmap levels alone: the body at the level it is called at."""
        if self.vmap_method == "error":
            raise no_vmap_rule(self.__name__)
        operands = live(operands)
        if self.combined:
            operands = (RuleContext((False,) * len(operands)), *operands)
        return run_untracked(self.function.forward, operands)

    def _enter_packed(self, operands: tuple[Any, ...]) -> Any:
        """A call with pytrees among its operands or outputs."""
        packing, leaves = Packing.of(operands)
        flat = self.packed.enter((packing, *leaves))
        return packing.output(flat)

    def _enter_split(self, operands: tuple[Any, ...]) -> Any:
        """A call of a Function whose residuals the levels must see."""
        call = Call(operands)
        outputs = self.split.bind(call, *operands)
        return outputs[0] if call.single else outputs[: call.count]

    def bind(self, *operands: Any) -> Any:
        """The operator, at the level now on top."""
        return bind(self, operands)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The user's ``setup_context``, and what a derived backward needs beside it."""
        self.function.setup_context(ctx, inputs, output)
        if self.transposes_jvp:
            keep_for_transpose(ctx, inputs)

    def forward_with_ctx(self, ctx: Any, *operands: Any) -> Any:
        """The user's ``forward`` in the combined form, and what a derived backward needs."""
        output = self.function.forward(ctx, *operands)
        if self.transposes_jvp:
            keep_for_transpose(ctx, operands)
        return output

    def grad_rule(self, *operands: Any) -> Any:
        """A node of this Function in the graph of the top level."""
        return apply_single_level(self.node, operands)

    def jvp_rule(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """Outputs and their tangents, by the user's ``jvp`` or from ``backward``."""
        if self.jvp is None and self.backward is None:
            raise no_derivative(self.__name__, "forward mode (jvp, jacfwd)")
        ctx = RuleContext(tuple([tangent is not None for tangent in tangents]), lowered=True)
        outputs = self.bind(*primals)
        self.function.setup_context(ctx, primals, outputs)
        flat = outputs if isinstance(outputs, tuple) else (outputs,)
        if self.jvp is None:
            result: Any = jvp_from_backward(self, ctx, flat, tangents)
        else:
            if ctx.materialize_grads:
                tangents = tuple([materialize(p, t) for p, t in zip(primals, tangents)])
            result = self.jvp(ctx, *tangents)
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
            try:
                mapping = Mapping(info, in_dims)
                return self.mapped.bind(mapping, *operands), mapping.out_dims
            except RuntimeError as error:
                self.loop_because(error)
        return loop(self.bind, self.__name__, info, in_dims, operands)

    def loop_because(self, error: RuntimeError) -> None:
        """Loop over batches from now on if ``error`` says that a body cannot be mapped."""
        if not is_unmappable(error):
            raise error
        if not self.loops:
            warn_once(self.__name__, error)
        self.loops = True

    def run_backward(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """One gradient for each input, by the user's ``backward`` or from ``jvp``."""
        if self.once:
            gradients = run_once(self.__name__, self.backward, ctx, cotangents)
        else:
            gradients = self.run_linear(ctx, cotangents)
        check_count(self.__name__, self.signature, gradients, len(ctx.needs_input_grad))
        return gradients

    def run_linear(self, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The user's ``backward`` as it is written, whether or not it may be differentiated."""
        if self.backward is None:
            if self.jvp is None:
                raise no_derivative(self.__name__, "reverse mode (grad, vjp, jacrev, .backward())")
            return backward_from_jvp(self, ctx, cotangents)
        backward = self.backward.__wrapped__ if self.once else self.backward  # type: ignore[attr-defined]
        result = backward(ctx, *cotangents)
        return result if isinstance(result, tuple) else (result,)


class SplitRules(FunctionRules):
    """The rules of a split Function; operand 0 of a call is its Call."""

    def __init__(self, source: FunctionRules) -> None:
        super().__init__(split_class(source))
        self.source = source
        self.hides_nothing = True

    def vmap_rule(
        self, info: VmapInfo, in_dims: tuple[int | None, ...], operands: tuple[Any, ...]
    ) -> Any:
        """The user's ``vmap`` where no level above needs residuals, else the derived rule."""
        call: Call = operands[0]
        if self.source.vmap is None or substrate.level_depth() + 1 < call.depth:
            return super().vmap_rule(info, in_dims, operands)
        output, out_dims = self.source.vmap(info, in_dims[1:], *operands[1:])
        call.single = not isinstance(output, tuple)
        call.count = 1 if call.single else len(output)
        return (output,) if call.single else output, (out_dims,) if call.single else out_dims


FunctionRules(DifferentiatedOnce)
