"""What a function reads besides its arguments: captured tensors, and values that may change."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from fxforms._tree import flatten, is_atom
from fxforms.staging.comparison import Comparison
from fxforms.staging.plain_values import SIMPLE, same, snapshot
from fxforms.staging.reads import Read, has_fields, is_builtin, is_installed, reads_of
from fxforms.staging.signature import form_of

_CONTAINERS = (tuple, list, dict, set, frozenset)
_missing = object()
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HELPERS = {"same": same, "snapshot": snapshot, "missing": _missing, "form_of": form_of}


class Captures(Comparison):
    """The variables of one function, with the values that they have now.

    Attributes:
        tensors: the tensors among them.
        holders: the cells, lists and dicts that hold them, each with a name for messages.
    """

    def __init__(
        self, function: Any, arguments: dict[str, Any] | None = None, fixed: Sequence[Any] = ()
    ) -> None:
        """``arguments``: objects among the static arguments, by the parameter's name.

        ``fixed``: all static values; the functions and modules among them read as well.
        """
        super().__init__(_HELPERS)
        self.tensors: list[torch.Tensor] = []
        self._walked: set[int] = set()
        self._opened: set[int] = set()
        self.holders: list[tuple[str, Any]] = []
        self._arguments = arguments or {}
        self.walk(function)
        if isinstance(function, types.FunctionType):
            self._walk_function(function, self._arguments)
        for value in filter(callable, fixed):
            self.walk(value)
        self.settle()

    def note_uses(self, traced: Any) -> None:
        """What is read of captured tensors besides the numbers of ``traced.captured``."""
        self._label = ".grad of a captured tensor"
        for x in traced.gradients:
            self._check(f"{self._name(x)}.grad is {self._name(x.grad)}")
        self._label = "what a captured tensor is"
        for tensor in traced.asked:
            if all(tensor is not x for x in traced.captured):
                self._check(f"form_of({self._name(tensor)}) == {self._name(form_of(tensor))}")

    def note(self, text: str, value: Any) -> None:
        """The variable ``text`` is read and holds ``value``."""
        if isinstance(value, SIMPLE):
            constant = value is None or isinstance(value, bool)
            check = f"{text} is {value!r}" if constant else f"same({text}, {self._name(value)})"
            self._check(check)
        elif isinstance(value, types.MethodType):
            self.walk(value)
        elif isinstance(value, _CONTAINERS) and not is_atom(value):
            self._note_container(text, value)
        elif not isinstance(value, types.ModuleType):
            self._check(f"{text} is {self._name(value)}")
            self._hold(value)
            self.walk(value)

    def _hold(self, value: Any) -> None:
        """``value`` may be given other attributes, as an optimiser is given its state."""
        if hasattr(value, "__dict__") and not isinstance(value, (type, types.FunctionType)):
            self.holders.append((type(value).__name__, vars(value)))

    def _note_container(self, text: str, value: Any) -> None:
        try:
            leaves = flatten(value)[0]
        except RecursionError:  # it holds itself
            self._check(f"{text} is {self._name(value)}")
            return
        if isinstance(value, (list, dict)):
            self.holders.append((self._label, value))
        self._check(f"snapshot({text}) == {self._name(snapshot(value))}")
        for leaf in leaves:
            if not isinstance(leaf, SIMPLE):
                self._name(leaf)  # alive, so that its id stays its own
                self.walk(leaf)
                self._note_fields(leaf)

    def _note_fields(self, value: Any) -> None:
        """``value`` goes on to where the reads of it are not seen: any field may be read."""
        if has_fields(value) and id(value) not in self._opened:
            self._opened.add(id(value))
            self._note_container(f"vars({self._name(value)})", vars(value))

    def walk(self, value: Any) -> None:
        """Note what ``value`` reads, if it is something that reads."""
        if id(value) in self._walked:
            return
        self._walked.add(id(value))
        self._name(value)
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, torch.nn.Module):
            self._walk_module(value)
        elif isinstance(value, torch.optim.Optimizer):
            self._walk_optimizer(value)
        elif isinstance(value, functools.partial):
            self.walk(value.func)
            self._walk_held((*value.args, *value.keywords.values()))
        elif isinstance(value, types.MethodType):
            self._hold(value.__self__)
            self.walk(value.__self__)
            if isinstance(value.__func__, types.FunctionType):  # else one of C, as of a Function
                self._walk_function(value.__func__, self._owner(value.__func__, value.__self__))
        elif isinstance(value, types.FunctionType):
            self._walk_function(value, {})
        elif isinstance(value, type):
            self._walk_class(value)
        elif callable(value) and not isinstance(value, types.BuiltinFunctionType):
            self._walk_callable(value)

    @staticmethod
    def _owner(function: types.FunctionType, owner: Any) -> dict[str, Any]:
        """The first argument of a method, by its name."""
        return dict(zip(function.__code__.co_varnames[: function.__code__.co_argcount], [owner]))

    def _walk_held(self, values: tuple[Any, ...]) -> None:
        """Values that are bound for good; what they hold may change."""
        for value in values:
            if not isinstance(value, SIMPLE):
                self.note(self._name(value), value)
                self._note_fields(value)

    def _walk_parts(self, tree: Any) -> None:
        for leaf in flatten(tree)[0]:
            self.walk(leaf)

    def _walk_callable(self, value: Any) -> None:
        """An object with ``__call__``; one of a library is known by what it holds."""
        call = type(value).__dict__.get("__call__")
        if isinstance(call, types.FunctionType) and not is_installed(call):
            self._walk_function(call, self._owner(call, value))
        else:
            for part in list(getattr(value, "__dict__", {}).values()):
                if callable(part) or isinstance(part, torch.Tensor):
                    self.walk(part)

    def _walk_class(self, cls: type) -> None:
        """The rules of a custom Function."""
        if issubclass(cls, torch.autograd.Function):
            for name in ("forward", "setup_context", "backward", "vjp", "jvp", "vmap"):
                rule = getattr(cls, name, None)
                if isinstance(rule, types.FunctionType) and not is_installed(rule):
                    self._walk_function(rule, {})

    def _walk_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Its settings, and the tensors that are its state."""
        name = self._name(optimizer)
        self._note_container(f"{name}.param_groups", optimizer.param_groups)
        self._note_container(f"list({name}.state.values())", list(optimizer.state.values()))

    def _walk_module(self, module: torch.nn.Module) -> None:
        name = self._name(module)
        self._check(f"{name}.training is {module.training}")
        for part in _HOOKS:
            self._note_table(f"{name}.{part}", getattr(module, part))
        self.holders.append((type(module).__name__, vars(module)))
        own = vars(module).get("forward")  # bound to this module alone
        self._check(f"{self._name(vars(module))}.get('forward') is {self._name(own)}")
        self.walk(own)
        for part in ("_parameters", "_buffers", "_modules"):
            table = getattr(module, part)
            if table:
                self._note_table(self._name(table), table)
        forward: Any = type(module).forward
        if isinstance(forward, types.FunctionType):
            self._walk_function(forward, self._owner(forward, module))

    def _note_table(self, text: str, table: dict[Any, Any]) -> None:
        """What ``table``, which is found at ``text``, holds by which key."""
        self._check(f"len({text}) == {len(table)}" if table else f"not {text}")
        for key, value in table.items():
            self._check(f"{text}.get({key!r}) is {self._name(value)}")
            if value is not None:
                self.walk(value)

    def _walk_function(self, function: types.FunctionType, arguments: dict[str, Any]) -> None:
        """The variables that ``function`` reads; some of its arguments are these objects."""
        if is_installed(function):
            self._walk_installed(function, arguments)
            return
        defaults = function.__defaults__ or ()
        self._walk_held((*defaults, *(function.__kwdefaults__ or {}).values()))
        for read in reads_of(function):
            self._follow(function, read, arguments)

    def _walk_installed(self, function: types.FunctionType, arguments: dict[str, Any]) -> None:
        """A function of a library: what its closure calls, and plain attributes of a module."""
        for cell in function.__closure__ or ():
            value = getattr(cell, "cell_contents", None)
            if callable(value) or isinstance(value, torch.Tensor):
                self.walk(value)
            elif isinstance(value, tuple):
                self._walk_parts(value)
        if any(isinstance(x, torch.nn.Module) for x in arguments.values()):
            for read in reads_of(function):
                if read.kind == "argument":
                    self._follow(function, read, arguments)

    def _follow(self, function: types.FunctionType, read: Read, arguments: dict[str, Any]) -> None:
        """Note the variable of ``read`` and the attributes taken from it."""
        self._label = read.name
        if read.kind == "stored":
            self.holders.append((read.name, read.cell or function.__globals__))
            return
        if read.kind == "argument":
            if read.name not in arguments:
                return
            value = arguments[read.name]
            text = self._name(value)
            self._hold(value)
        elif read.kind == "cell":
            cell = read.cell
            try:
                text, value = f"{self._name(cell)}.cell_contents", cell.cell_contents
            except ValueError:  # still empty
                return
            self.holders.append((read.name, cell))
            self.note(text, value)
        else:
            table = function.__globals__
            if read.name not in table:
                return
            self.holders.append((str(table.get("__name__")), table))
            text, value = f"{self._name(table)}.get({read.name!r}, missing)", table[read.name]
            self.note(text, value)
        self._follow_attributes(text, value, read.attributes)

    def _follow_attributes(self, text: str, value: Any, attributes: tuple[str, ...]) -> None:
        for attribute in attributes:
            if isinstance(value, (torch.Tensor, *SIMPLE)):
                return
            covered = isinstance(value, torch.nn.Module)
            found = getattr(value, attribute, _missing)
            if found is _missing or (isinstance(value, types.ModuleType) and is_builtin(found)):
                return
            text, self._label = f"{text}.{attribute}", f"{self._label}.{attribute}"
            if not (covered and isinstance(found, (torch.Tensor, torch.nn.Module))):
                self.note(text, found)
            value = found
        self._note_fields(value)
