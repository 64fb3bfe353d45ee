"""A jitted function: its signatures, and how a call finds its graph."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.fx import GraphModule

from fxforms import _substrate as substrate
from fxforms.errors import TraceError, name_of
from fxforms.staging import compiler
from fxforms.staging.captures import Captures
from fxforms.staging.changes import CapturedTraced, holders, refuse_changed
from fxforms.staging.entry import Entry, Outputs, never
from fxforms.staging.history import CacheInfo, History
from fxforms.staging.leaks import without_leaks
from fxforms.staging.locks import Lock
from fxforms.staging.method import Method
from fxforms.staging.program import Program
from fxforms.staging.signature import (
    Call,
    carries_tangent,
    is_followed,
    is_plain,
    key_of,
    put_together,
    static_objects,
    take_apart,
    tensors_of,
)

MAX_ENTRIES = 256
MAX_VARIANTS = 8
_compiling = torch.compiler.is_dynamo_compiling
_outside_graph: Callable[[Any], Any] = torch.compiler.disable


class Jitted:
    """A function that is traced once a signature and then run compiled."""

    def __init__(
        self,
        function: Callable[..., Any],
        argnums: frozenset[int],
        argnames: frozenset[str],
        donated: frozenset[int],
        dynamic: bool,
        start: Callable[[Any], None],
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._static, self._donated = (argnums, argnames), donated
        self._dynamic = dynamic
        self._start = start
        self._lock = Lock()
        self.history = History(name_of(function))
        self.clear_cache()

    def clear_cache(self) -> None:
        """Forget every traced signature."""
        with self._lock:
            self._entries: OrderedDict[Any, list[Entry]] = OrderedDict()
            self._numbered: OrderedDict[Any, None] = OrderedDict()
            self._refused: OrderedDict[Any, Captures] = OrderedDict()
            self._hits = self._misses = 0
            self.history.last_key = None
            self._forget()

    def _forget(self) -> None:
        """Let no signature be answered quickly."""
        self._last: tuple[int, Callable[..., bool], Callable[..., Any]] = (-1, never, never)
        self._last_entry: tuple[Any, Entry] | None = None

    def cache_info(self) -> CacheInfo:
        """Hits, misses, and how many graphs are kept of how many at most."""
        return CacheInfo(self._hits, self._misses, self._size(), MAX_ENTRIES)

    def _size(self) -> int:
        return sum(map(len, self._entries.values()))

    def entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """The traced signature that serves these arguments."""
        try:
            return self._entry(take_apart(args, kwargs, *self._static))[0]
        except CapturedTraced:
            raise TraceError(
                f"jit of {name_of(self._function)}: the function uses a tensor of a transform "
                f"outside of it, so there is no graph of it alone. Pass the tensor as an argument."
            ) from None

    def trace(self, *args: Any, **kwargs: Any) -> GraphModule:
        """The traced program at these arguments, a graph of ATen operators on flat tensors.

        Captured tensors are its last inputs; what is changed in place are its last outputs.
        """
        return self.entry(args, kwargs).program.traced.graph

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        """The same of a copy of the function, with nothing traced."""
        function = copy.deepcopy(self._function, memo)
        return Jitted(function, *self._static, self._donated, self._dynamic, self._start)

    def lower(self, *args: Any, **kwargs: Any) -> GraphModule:
        """The same program in the operators that the compiler is given."""
        lowered: GraphModule = compiler.backends().lower(self.trace(*args, **kwargs))
        return lowered

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound to its object, which is then static."""
        return self if instance is None else Method(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function at these arguments."""
        count, accepts, run = self._last
        if len(args) == count and not kwargs:
            try:
                accepted = accepts(*args)
            except Exception:  # no tensor among the arguments, or a captured variable is gone
                accepted = False
            if accepted:
                self._hits += 1
                return run(args)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the quick check does not answer."""
        if _compiling():
            return _outside_graph(self._function)(*args, **kwargs)
        if substrate.dispatch_modes():  # another tracer, which sees through
            return self._function(*args, **kwargs)
        call = take_apart(args, kwargs, *self._static)
        entry = self._recent(call)
        if entry is not None:
            self._hits += 1
            return entry.answer(call.tensors)
        if not all(map(is_plain, call.tensors)) or carries_tangent(call.tensors):
            return self._function(*args, **kwargs)
        try:
            entry, fresh = self._entry(call)
        except CapturedTraced:
            return self._function(*args, **kwargs)
        self._misses, self._hits = self._misses + fresh, self._hits + (not fresh)
        if substrate.transforms_active():
            return self._under_levels(entry, call, args, kwargs)
        if entry.program.traced.written and not entry.may_write(call.tensors):
            return self._function(*args, **kwargs)
        entry.arm(call)
        self._remember(entry, call, len(args), bool(kwargs))
        return entry.answer(call.tensors)

    def _under_levels(
        self, entry: Entry, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call inside a transform: an instance of the operator.

        What changes tensors in place runs as it is, so that each level sees the change.
        """
        if entry.program.traced.written or entry.program.traced.turned:
            return self._function(*args, **kwargs)
        return entry.finish(entry.program.bind(*call.tensors), call.tensors)

    def _recent(self, call: Call) -> Entry | None:
        """The entry of the last call, if it serves this one too."""
        last = self._last_entry
        if last is None or last[0] != (call.spec, call.where, call.keys):
            return None
        try:
            return last[1] if last[1].accepts(*call.tensors) else None
        except Exception:  # a captured variable is gone
            return None

    def _remember(self, entry: Entry, call: Call, count: int, named: bool) -> None:
        """Let the next call like this one be answered quickly."""
        self._last_entry = ((call.spec, call.where, call.keys), entry)
        if not named and count == len(call.tensors) == len(call.where) and not call.fixed:
            self._last = (count, entry.accepts, entry.answer)

    def _entry(self, call: Call) -> tuple[Entry, bool]:
        """The graph for this signature, traced now if there is none; and whether it was."""
        symbols = self._dynamic and not is_followed(call.tensors)
        key = key_of(self._function, call, symbols)
        with self._lock:
            refused = self._refused.get(key)
            if refused is not None and refused.hold():
                raise CapturedTraced
            if not symbols:
                return self._find(key, call)
            if key not in self._numbered:
                known = self._known(key, call)
                entry = known or self._trace_symbols(key, call)
                if entry is not None:
                    return (entry, False) if known else self._add(key, entry)
            found = self._find(key_of(self._function, call, False), call)
            self._numbered[key] = None
            trim(self._numbered)
            return found

    def _find(self, key: Any, call: Call) -> tuple[Entry, bool]:
        """The same for sizes that are numbers."""
        known = self._known(key, call)
        return (known, False) if known else self._add(key, self._trace(call, False))

    def _known(self, key: Any, call: Call) -> Entry | None:
        """The graph of an earlier call."""
        found = self._entries.get(key, ())
        entry = next((entry for entry in found if entry.serves(call.tensors)), None)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def _add(self, key: Any, entry: Entry) -> tuple[Entry, bool]:
        """``entry``, remembered, and True."""
        known = self._entries.setdefault(key, [])
        self._entries.move_to_end(key)
        self.history.add(key, known[-1] if known else None, entry)
        del known[: -MAX_VARIANTS + 1]
        known.append(entry)
        while self._size() > MAX_ENTRIES:
            self._entries.popitem(last=False)
        return entry, True

    def _trace_symbols(self, key: Any, call: Call) -> Entry | None:
        """The graph for symbols as sizes; None where each size needs a graph of its own.

        So where torch asks for a number, where plain autograd differentiates with respect to what
        is captured, and where Python is called, which knows no symbols.
        """
        variants = self._entries.get(key, [])
        if len(variants) >= MAX_VARIANTS and variants[0].captures.hold():
            return None
        try:
            entry = self._trace(call, True)
        except CapturedTraced:
            raise
        except Exception:  # torch says in many ways that it wants a number; else it comes again
            return None
        traced = entry.program.traced
        differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in traced.captured)
        return None if differentiated or any(body.likes for body in traced.bodies) else entry

    def _trace(self, call: Call, dynamic: bool) -> Entry:
        objects = static_objects(self._function, *put_together(call, call.tensors, *self._static))
        captures = Captures(self._function, objects, call.fixed)
        if substrate.transforms_active() and any(map(substrate.is_wrapped, captures.tensors)):
            raise CapturedTraced
        outputs, bare = Outputs(), call._replace(tensors=[])  # a graph keeps no argument alive

        def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            args, kwargs = put_together(bare, tensors, *self._static)
            before = holders((*args, *kwargs.values()))
            output = self._function(*args, **kwargs)
            refuse_changed(name, before)
            return outputs.flatten(output)

        name = name_of(self._function)
        program = without_leaks(
            captures,
            name,
            lambda: Program.of(name, flat, call.tensors, self._start, dynamic),
        )
        if outputs.recorded and (program.traced.turned or not torch.is_grad_enabled()):
            self._refuse(call, captures)
        captures.note_uses(program.traced)
        captures.settle()
        return Entry(program, outputs, captures, self._donations(bare))

    def _refuse(self, call: Call, captures: Captures) -> NoReturn:
        """Run the function as it is, for every call like this one."""
        if not substrate.transforms_active():  # levels are no part of a key
            key = key_of(self._function, call, self._dynamic and not is_followed(call.tensors))
            captures.settle()
            self._refused[key] = captures
            trim(self._refused)
        raise CapturedTraced

    def _donations(self, call: Call) -> list[int]:
        """Which tensors of the call are donated."""
        if not self._donated:
            return []
        likes = [torch.empty(0)] * sum(call.where)
        args, _ = put_together(call, likes, *self._static)
        return tensors_of(args, self._donated)


def trim(table: OrderedDict[Any, Any]) -> None:
    """Drop the oldest entry of ``table`` if there are too many: its key keeps static values."""
    if len(table) > MAX_ENTRIES:
        table.popitem(last=False)
