"""The one adapter over torch's private capture of backward passes, its fakes, and Inductor.

torch's engine can tell a backward pass to a Python object, a recorder, in place of running it. No
other file of this room touches ``torch._C`` or ``torch._dynamo``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C._dynamo import compiled_autograd as _capture
from torch._subclasses.fake_tensor import FakeTensorMode

_MAX_PROGRAMS = 1000
_kept = 0  # programs in the engine's cache
_foreign = ""  # the last program that torch's own compiled autograd put there


@functools.cache
def _slow(module: str) -> Any:
    """A module of torch loaded at its first use: these take as long as torch itself."""
    return importlib.import_module(module)


def _dynamo() -> Any:
    """torch's own compiled autograd."""
    return _slow("torch._dynamo.compiled_autograd")


def _trim_cache() -> None:
    """Empty the engine's cache if it is full, or if torch's own compiled autograd has used it.

    The cache is one for the process, and a hit runs whatever program is found.
    """
    global _foreign, _kept
    seen = repr(_dynamo().COMPILE_COUNTER)
    if seen != _foreign or _kept >= _MAX_PROGRAMS:
        _capture.clear_cache()
        _foreign, _kept = seen, 0


def count_program() -> None:
    """A recorder gives the engine one more program to keep."""
    global _kept
    _kept += 1


@contextlib.contextmanager
def recorders(make: Callable[[], Any]) -> Iterator[None]:
    """Have the engine tell every backward pass of the process to a recorder that ``make`` makes.

    What its ``end_capture`` returns is called with the values of the pass, and of later passes of
    the same structure.
    """
    _trim_cache()
    prior = _capture.set_autograd_compiler(make, False)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _capture.set_autograd_compiler(*prior)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Let backward passes inside a hook or a Function run as usual."""
    prior = _capture.set_autograd_compiler(None, False)
    try:
        yield
    finally:
        _capture.set_autograd_compiler(*prior)


def bind_formula(name: str, function: Any, custom: bool, traceable: bool) -> str:
    """Keep the backward formula of a built-in node by its name; torch keeps the same table."""
    bound: str = _dynamo().ops.add(name, function, custom, traceable)
    return bound


def formula(name: str) -> Any:
    """The backward formula of a built-in node."""
    return _dynamo().ops.get(name)


def symbols(numbers: Sequence[int | float]) -> list[Any]:
    """A stand-in for each of ``numbers``."""
    if not numbers:
        return []
    shapes = _slow("torch.fx.experimental.symbolic_shapes")
    env, kind = shapes.ShapeEnv(), shapes.DimDynamic.DYNAMIC
    found: list[Any] = []
    for index, value in enumerate(numbers):
        source = _dynamo().AutogradCompilerInstance.source("numbers", index)
        if isinstance(value, int):
            found.append(env.create_unspecified_symint_and_symbol(value, source, kind))
        else:
            symbol = env.create_unspecified_symbol(value, source, kind)
            found.append(env.create_symfloatnode(symbol, hint=value, source=source))
    return found


def run_cpp_hook(index: int, grad: torch.Tensor) -> torch.Tensor:
    """A tensor hook written in C++, such as that of ``retain_grad``, of the pass that runs."""
    return _capture.call_cpp_tensor_pre_hooks(index, grad)


def execution_order() -> list[Any]:
    """The nodes of the pass that runs, in the order in which the engine would run them.

    Empty if two outputs are of one node, for which torch cannot tell.
    """
    try:
        nodes: list[Any] = torch._C._current_graph_task_execution_order()  # type: ignore[attr-defined]
    except RuntimeError:
        return []
    return nodes


def accumulated(
    variable: torch.Tensor, current: torch.Tensor | None, grad: torch.Tensor, post_hooks: bool
) -> torch.Tensor:
    """What the engine's AccumulateGrad makes of ``current``, the ``.grad`` so far, and ``grad``."""
    add: Any = _dynamo().ops.AccumulateGrad
    return add([grad], variable, current, post_hooks)[0]  # type: ignore[no-any-return]


def fake_mode() -> Any:
    """A mode in which tensors have metadata and no numbers."""
    return FakeTensorMode(allow_fallback_kernels=True)


def fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` without its numbers and its history."""
    found: torch.Tensor = mode.from_tensor(tensor.detach())
    return found.requires_grad_(tensor.requires_grad)
