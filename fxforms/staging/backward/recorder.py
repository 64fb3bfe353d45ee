"""What the engine tells of a backward pass, as a program, and what it runs in its place."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import map_leaves
from fxforms.errors import UnsupportedError
from fxforms.staging.backward import engine, views
from fxforms.staging.backward.schedule import reorder
from fxforms.staging.backward.steps import Kind, Program, Slot, Step
from fxforms.staging.locks import Lock

# Runs a program on the values of a pass; returns the gradients that the pass asks for.
Execute = Callable[[Program, list[Any]], Sequence[torch.Tensor | None]]

_executors: list[Execute] = []
_lock = Lock()  # the engine has one recorder for the process


@contextlib.contextmanager
def capturing(execute: Execute, otherwise: Execute) -> Iterator[None]:
    """Hand every backward pass of the process to ``execute``, as a program and its values.

    Where torch's own compiled autograd comes upon the program later, ``otherwise`` runs it.
    """
    with _lock, engine.recorders(functools.partial(Recorder, otherwise)):
        _executors.append(execute)
        try:
            yield
        except NotImplementedError as error:
            refuse_hook_in_cpp(error)
            raise
        finally:
            _executors.pop()


def refuse_hook_in_cpp(error: NotImplementedError) -> None:
    """Raise UnsupportedError if ``error`` says that the engine cannot tell of a hook."""
    if "compiled_args nyi" in str(error):
        raise UnsupportedError(
            "This backward pass has a hook written in C++, as distributed wrappers install them, "
            "which the engine can only run. Use eager autograd for this pass."
        ) from error


def _run(program: Program, otherwise: Execute, _: Any, *given: Any) -> list[torch.Tensor | None]:
    """Called by the engine at every pass, captured now or before."""
    tensors, *rest = given
    values = program.load([substrate.unwrap_if_dead(x) for x in tensors], *rest)
    tensors.clear()  # else the list would keep each tensor to the end of the pass
    execute = _executors[-1] if _executors else otherwise
    with engine.eager():
        return list(execute(program, values))


class Recorder:
    """What the engine tells of one backward pass, as a :class:`Program`.

    The engine calls the methods by name. Tensors are stand-ins, told apart by identity.
    """

    def __init__(self, otherwise: Execute) -> None:
        self.otherwise = otherwise
        self.program = Program()
        self.call = 0
        self._modes = contextlib.ExitStack()
        self._order: list[Any] = []
        self._layout: Sequence[Any] = ()
        self._alive: list[torch.Tensor] = []
        self._slots: dict[int, Slot] = {}
        self._symbols: dict[Any, Slot] = {}

    def close(self) -> None:
        """The engine is done, or gave up."""
        self._modes.close()

    def begin_capture(
        self,
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[int | float],
        origins: Any,
        accumulate_grad: bool,
        check_nans: bool,
    ) -> tuple[str, list[torch.Tensor], list[Any], list[Any]]:
        """The values of the pass; returns their stand-ins."""
        program = self.program
        self._order = engine.execution_order()
        program.tensors = [program.new_slot() for _ in inputs]
        stand_ins = [torch.empty(0) for _ in inputs]
        for slot, tensor in zip(program.tensors, stand_ins):
            self._bind(tensor, slot)
        numbers = engine.symbols([*sizes, *scalars])
        if numbers:  # the engine makes zeros of such sizes
            self._modes.enter_context(engine.fake_mode())
        for symbol in numbers:
            slot = self._symbols[symbol.node] = program.new_slot()
            program.numbers.append(slot)
        return "fxforms", stand_ins, numbers[: len(sizes)], numbers[len(sizes) :]

    def log_compile_reasons(self, reasons: list[str]) -> None:
        """Why no program in the cache fits."""

    def set_node_origin(self, name: str, call: int, node: Any) -> None:
        """The steps that follow belong to this node."""
        self.call = call
        self.program.names[call] = name.removeprefix("torch::autograd::")

    def bind_function(self, name: str, function: Any, custom: bool, traceable: bool) -> str:
        """The backward formula of a built-in node, told once a process."""
        return engine.bind_formula(name, function, custom, traceable)

    def apply_functional(
        self, name: str, grads: Sequence[Any], args: Sequence[Any], metadata: Sequence[Any]
    ) -> list[torch.Tensor]:
        """A built-in node."""
        formula = engine.formula(name)
        opaque = not hasattr(formula, "fn")  # a C++ Function that was not declared traceable
        kind = Kind.CPP_FUNCTION if opaque else Kind.FORMULA
        return self._step(kind, name, formula, [list(grads), *args], len(metadata))

    def validate_outputs(
        self, _: Any, outputs: Sequence[Any], args: Any, metadata: Any
    ) -> list[torch.Tensor]:
        """The engine's check of gradients: each gets the shape and dtype that it must have."""
        check = engine.formula("validate_outputs")
        return self._step(Kind.FORMULA, "validate", check, [list(outputs), *args], len(outputs))

    def accumulate(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Two gradients of one value, summed."""
        return self._single(Kind.SUM, "add", [old, new])

    def accumulate_grad(
        self, variable: torch.Tensor, current: Any, grad: Any, post_hooks: bool
    ) -> torch.Tensor:
        """A leaf's ``.grad``."""
        args = [variable, current, grad, post_hooks]
        return self._single(Kind.ACCUMULATE, "AccumulateGrad", args)

    def proxy_call_backward(
        self,
        inputs: Sequence[Any],
        metadata: Sequence[Any],
        saved: Sequence[Any],
        index: int,
        ctx: Any,
        *state: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """A Function written in Python.

        Absent gradients are zeros of a fixed size by now, if the Function wants that; the step
        makes them itself. With all gradients there it is not known, and the default is taken.
        """
        known = [x if x is not None and id(x) in self._slots else None for x in inputs]
        materialize = any(x is not y for x, y in zip(inputs, known)) or None not in known
        likes = [like and [*like[1:3], list(like[3])] for like in metadata]
        args = [self._hook(index), list(saved), known, materialize, likes]
        name = type(ctx).__name__
        found = self._step(Kind.FUNCTION, name, None, args, len(metadata))
        return tuple([None if like is None else x for x, like in zip(found, metadata)])

    def call_copy_slices_prologue(self, *args: Any) -> list[torch.Tensor]:
        """The first half of an in-place change of a view."""
        self._layout = args[1:]
        return self._step(Kind.FORMULA, "CopySlices", views.prologue, list(args), 3)

    def call_copy_slices_epilogue(
        self, needs: Sequence[bool], base: Any, found: Sequence[Any], part: Any
    ) -> list[torch.Tensor]:
        """The second half."""
        args = [list(needs), base, list(found), *self._layout]
        return self._step(Kind.FORMULA, "CopySlices", views.epilogue, args, len(needs))

    def tensor_pre_hook(self, inputs: list[Any], hook: int, index: int) -> list[Any]:
        """A hook of a tensor."""
        args = [self._hook(hook), inputs[index]]
        inputs[index] = self._single(Kind.TENSOR_HOOK, "tensor_hook", args)
        return inputs

    def cpp_tensor_pre_hook(self, inputs: list[Any], hook: int, index: int) -> list[Any]:
        """The same, written in C++."""
        args = [hook, inputs[index]]
        inputs[index] = self._single(Kind.CPP_HOOK, "cpp_hook", args)
        return inputs

    def pre_hook(self, inputs: Sequence[Any], hook: int) -> list[Any]:
        """A hook before a node."""
        args = [self._hook(hook), list(inputs)]
        return self._step(Kind.PRE_HOOK, "pre_hook", None, args, len(inputs))

    def post_hook(self, outputs: Sequence[Any], inputs: Sequence[Any], hook: int) -> list[Any]:
        """A hook after a node."""
        args = [self._hook(hook), list(outputs), list(inputs)]
        return self._step(Kind.POST_HOOK, "post_hook", None, args, len(outputs))

    def post_acc_grad_hook(self, variable: torch.Tensor, hook: int) -> list[torch.Tensor]:
        """A hook after AccumulateGrad."""
        args = [self._hook(hook), variable]
        return self._step(Kind.POST_ACCUMULATE_HOOK, "post_accumulate_grad_hook", None, args, 1)

    def unpack_hook(self, hook: int, data: int) -> torch.Tensor:
        """A saved tensor that a hook had packed."""
        args = [self._hook(hook), self._hook(data, packed=True)]
        return self._single(Kind.UNPACK, "unpack_hook", args)

    def end_capture(self, outputs: Sequence[Any]) -> tuple[Any, Any]:
        """The gradients of the pass; returns what the engine calls at each pass."""
        self.close()
        self.program.outputs = [self._refer(x) for x in outputs]
        reorder(self.program, self._order)
        engine.count_program()
        return functools.partial(_run, self.program, self.otherwise), _run

    def _bind(self, tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
        self._alive.append(tensor)
        self._slots[id(tensor)] = slot
        return tensor

    def _hook(self, index: int, packed: bool = False) -> Slot:
        """The slot of a hook or of packed data, which get places before all results."""
        return self.program.object_slot(index, packed)

    def _refer(self, value: Any) -> Any:
        """``value`` with a slot for each stand-in."""
        if isinstance(value, torch.Tensor):
            return self._slots[id(value)]
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return self._symbols[value.node]
        return value

    def _single(self, kind: Kind, name: str, args: list[Any]) -> torch.Tensor:
        """Record a step that has one result."""
        found: torch.Tensor = self._step(kind, name, None, args, 1)[0]
        return found

    def _step(self, kind: Kind, name: str, target: Any, args: list[Any], count: int) -> list[Any]:
        """Record one step and return stand-ins for its results."""
        slots = [self.program.new_slot() for _ in range(count)]
        referred = map_leaves(self._refer, args)
        self.program.steps.append(Step(kind, name, target, referred, slots, self.call))
        return [self._bind(torch.empty(0), slot) for slot in slots]
