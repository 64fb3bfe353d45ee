"""One signature of a staged function: its program, and how a call of it is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten
from fxforms.errors import TraceError, describe
from fxforms.functions.inline import tracked
from fxforms.staging import fake, guards
from fxforms.staging.captures import Captures
from fxforms.staging.donate import donating
from fxforms.staging.program import Program
from fxforms.staging.signature import Call, form_of


class Outputs:
    """The structure of what a function returns, and the leaves in it that are no tensors."""

    def __init__(self) -> None:
        self.spec: PyTreeSpec | None = None
        self.leaves: list[Any] = []

    def flatten(self, output: Any) -> tuple[torch.Tensor, ...]:
        """The tensors of ``output``; the first call fixes the structure."""
        leaves, spec = flatten(output)
        leaves = [int(x) if isinstance(x, torch.SymInt) else x for x in leaves]
        for leaf in leaves:
            refuse_hidden(leaf)
        if self.spec is None:
            self.spec = spec
            self.recorded = any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)
            self.leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]
            self.where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
            self.single = isinstance(output, torch.Tensor)
            self.flat = type(output) is tuple and all(isinstance(x, torch.Tensor) for x in output)
        return tuple([x for x in leaves if isinstance(x, torch.Tensor)])

    def restore(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The output with these tensors in it."""
        if self.single:
            return tensors[0]
        if self.flat:
            return tuple(tensors[: len(self.where)])
        leaves = list(self.leaves)
        for index, tensor in zip(self.where, tensors):
            leaves[index] = tensor
        assert self.spec is not None
        return self.spec.unflatten(leaves)


def refuse_hidden(leaf: Any) -> None:
    """Raise TraceError if ``leaf`` is no tensor and holds traced ones."""
    held = leaf if isinstance(leaf, (set, frozenset, deque)) else getattr(leaf, "__dict__", None)
    if isinstance(leaf, torch.Tensor) or not held:
        return
    if any(map(fake.is_fake, held.values() if isinstance(held, dict) else held)):
        raise TraceError(
            f"jit: the function returns {describe(leaf)} with tensors in it, which is no container "
            f"that jit knows. Return a dict, list, tuple or named tuple, or register the class "
            f"(torch.utils._pytree.register_dataclass)."
        )


class Entry:
    """A traced signature.

    Attributes:
        accepts: True if the tensors of a call, given one by one, and the process are as when this
            was armed; False where a level or a mode is active.
        answer: the output for the tensors of a call that was accepted.
    """

    def __init__(
        self, program: Program, outputs: Outputs, captures: Captures, donated: Sequence[int]
    ) -> None:
        """``donated``: the tensors of a call whose memory is given up to the outputs."""
        self.program = program
        self.outputs = outputs
        self.captures = captures
        self.accepts: Callable[..., bool] = never
        self.answer: Callable[[Sequence[torch.Tensor]], Any] = self.run
        traced = program.traced
        self.layouts = [form_of(x) for x in traced.captured]
        self.plain = not (traced.written or traced.turned) and set(traced.returned) <= {None}
        self.direct, self.donated = program, donated
        if donated and self.plain:
            self.direct = program.part("donating", donating(traced, donated))

    def serves(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True while no captured variable has changed, for tensors of sizes that fit."""
        traced = self.program.traced
        if self.layouts != [form_of(x) for x in traced.captured]:
            return False  # module.half(), module.requires_grad_() change parameters in place
        try:
            return self.captures.unchanged() and (traced.serves is None or traced.serves(tensors))
        except Exception:  # a variable is gone
            return False

    def arm(self, call: Call) -> None:
        """Let the quick checks answer the next call like this one, in a process like now."""
        captured = tuple(self.program.traced.captured)
        everything = [*call.tensors, *captured]
        sizes = [[None] * x.dim() for x in call.tensors] + [list(x.shape) for x in captured]
        symbols = self.program.traced.serves is not None
        check = guards.tensor_guard(everything, sizes if symbols else None)
        self.accepts = acceptance(check, guards.state_guard(), self, captured)
        like = self.accepts  # whether operands share memory is no part of the signature
        if self.program.traced.written:
            self.accepts = lambda *x: like(*x) and self.may_write(x)
        elif self.direct is not self.program:
            self.accepts = never
        if substrate.function_modes():  # under the default device of a block, say
            self.accepts = never
        self.answer = self.run
        if self.plain and not tracked(tuple(everything)):
            own = self.direct is self.program or all(map(is_alone(everything), self.donated))
            direct = self.direct if own else self.program
            self.answer = untracked(direct, self.outputs, captured)

    def may_write(self, tensors: Sequence[torch.Tensor]) -> bool:
        """False if a write would reach two operands, or must be recorded by autograd."""
        traced = self.program.traced
        everything = [*tensors, *traced.captured]
        if tracked(tuple(everything)) and any(i < len(tensors) for i in traced.written):
            return False
        return all(map(is_alone(everything), traced.written))

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The output for ``tensors``, with no level active."""
        results = self.program.evaluate(*tensors)
        return self.outputs.restore(results) if self.plain else self.finish(results, tensors)

    def finish(self, results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
        """The output, after what the function changes in place is changed."""
        traced = self.program.traced
        targets = [*tensors, *traced.captured]
        for index, value in zip(traced.written, traced.written_values(results)):
            write(targets[index], value)
        for index, flag in traced.turned.items():
            targets[index].requires_grad_(flag)
        values = results[: traced.outputs]
        same = [x if i is None else targets[i] for x, i in zip(values, traced.returned)]
        return self.outputs.restore(same)


def write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Give ``target`` these numbers; the trace has shown that a leaf is written to unrecorded."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not target.is_leaf):
        target.copy_(value)


def is_alone(tensors: Sequence[torch.Tensor]) -> Callable[[int], bool]:
    """Whether no other of ``tensors`` shares the memory of the one at an index."""
    memory = [x.untyped_storage()._cdata for x in tensors]
    return lambda index: memory.count(memory[index]) == 1


def never(*given: Any) -> bool:
    """Before an entry is armed."""
    return False


def acceptance(
    check: Callable[..., bool],
    state: Callable[[], bool],
    entry: Entry,
    captured: tuple[torch.Tensor, ...],
) -> Callable[..., bool]:
    """The quick check of ``entry``, without the parts that it does not need."""
    unchanged: Callable[..., bool] = entry.captures.unchanged
    dual, modes = substrate.dual_level_open, substrate.function_modes
    if entry.program.traced.serves is not None:
        return lambda *x: (
            check(*x, *captured) and state() and not (dual() or modes()) and entry.serves(x)
        )
    if captured:
        return lambda *x: (
            check(*x, *captured) and state() and not (dual() or modes()) and unchanged()
        )
    return lambda *x: check(*x) and state() and not (dual() or modes()) and unchanged()


def untracked(
    program: Program, outputs: Outputs, captured: tuple[torch.Tensor, ...]
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """What answers a call that nothing follows and that changes nothing."""
    restore = outputs.restore
    if outputs.single:
        return lambda tensors: program.executable([*tensors, *captured])[0]
    return lambda tensors: restore(program.executable([*tensors, *captured]))
