"""Looking at what ``jit`` does: the program, the shapes, and where the time went."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from fxforms import _substrate as substrate
from fxforms._tree import map_tensors
from fxforms.errors import describe, name_of
from fxforms.staging import fake
from fxforms.staging.history import CacheInfo, Trace
from fxforms.staging.jit import as_jitted


@dataclass
class Explanation:
    """What a call of a jitted function runs; ``print`` it for a page of text.

    Attributes:
        name: the function's name.
        traces: the traces made so far, the oldest first, each with its reason.
        cache: how calls were answered.
        guards: what a call is compared with before its graph is used.
        operators: how often each operator stands in the graph of this call.
        recorded: operators as they were recorded, before simplification.
        trace_seconds: how long this graph took to trace.
        compile_seconds: how long it took to compile; None while it is not compiled.
        call_seconds: the time of one call now.
    """

    name: str
    traces: list[Trace]
    cache: CacheInfo
    guards: list[str]
    operators: dict[str, int]
    recorded: int
    trace_seconds: float
    compile_seconds: float | None
    call_seconds: float

    def __str__(self) -> str:
        kept = sum(self.operators.values())
        compiled = "not compiled"
        if self.compile_seconds is not None:
            compiled = f"compiled in {self.compile_seconds:.3f} s"
        return "\n".join(
            [
                f"{self.name}: {len(self.traces)} traces, {self.cache.size} graphs kept",
                *[f"  traced in {t.seconds:.3f} s: {t.reason}" for t in self.traces],
                f"this graph: {self.recorded} operators recorded, {kept} kept, {compiled}",
                *[f"  {count} x {name}" for name, count in self.operators.items()],
                f"a call: {self.call_seconds * 1e6:.1f} microseconds",
                "guards:",
                *[f"  {guard}" for guard in self.guards],
            ]
        )


def explain(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What :func:`jit` makes of ``func`` at these arguments: traces, guards, operators, time.

    Args:
        func: a jitted function, whose own history is told, or any function.
        args, kwargs: what to call it with; it is called twice.

    Returns:
        An :class:`Explanation`, which prints as a page of text.

    Raises:
        TraceError: ``func`` asks for the value of a traced tensor.

    Example:
        >>> import torch, fxforms
        >>> told = fxforms.explain(fxforms.grad(lambda x: (x**2).sum()), torch.ones(3))
        >>> told.traces[0].reason
        'the first call'
        >>> told.operators
        {'ones': 1, 'expand': 1, 'pow': 1, 'mul': 2}
    """
    jitted = as_jitted(func)
    jitted(*args, **kwargs)
    started = time.perf_counter()
    jitted(*args, **kwargs)
    elapsed = time.perf_counter() - started
    entry = jitted.entry(args, kwargs)
    traced, names = entry.program.traced, entry.captures.checks()
    return Explanation(
        name_of(func),
        list(jitted.history.traces),
        jitted.cache_info(),
        [*map(describe, traced.input_examples()), *map("{} as it was".format, names)],
        dict(Counter(traced.operators())),
        traced.recorded,
        traced.seconds,
        entry.program.compiled_in,
        elapsed,
    )


def trace(func: Callable[..., Any]) -> Callable[..., GraphModule]:
    """The function that traces ``func`` at its arguments, as ``make_fx`` does.

    Args:
        func: takes and returns pytrees; transforms inside of it are traced through.

    Returns:
        A function of the same arguments that returns the program, a ``torch.fx.GraphModule`` of
        ATen operators: ``print_readable()`` shows it. It takes the tensor leaves of the arguments,
        then the tensors that ``func`` captures, and returns a tuple: the tensor leaves of the
        output, then the new values of what ``func`` changes in place.

    Raises:
        TraceError: ``func`` asks for the value of a traced tensor.

    Example:
        >>> import torch, fxforms
        >>> program = fxforms.trace(fxforms.grad(torch.sin))(torch.tensor(0.0))
        >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        ['aten.ones.default', 'aten.cos.default', 'aten.mul.Tensor']
        >>> program(torch.tensor(0.0))
        (tensor(1.),)
    """

    def run(*args: Any, **kwargs: Any) -> GraphModule:
        jitted = as_jitted(func)
        program: GraphModule = jitted.trace(*args, **kwargs)
        return program

    return run


def eval_shape(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of what ``func`` returns, without any of its arithmetic.

    Args:
        func: takes and returns pytrees.
        args, kwargs: its arguments; only their shapes, dtypes and devices count.

    Returns:
        A pytree like the output, with tensors on the device ``"meta"``, which have no values.

    Raises:
        TraceError: ``func`` asks for the value of a traced tensor.

    Example:
        >>> import torch, fxforms
        >>> fxforms.eval_shape(torch.outer, torch.ones(3), torch.ones(4)).shape
        torch.Size([3, 4])
    """
    if substrate.dispatch_modes():  # inside a trace: what func records is left unused
        return map_tensors(without_values, func(*args, **kwargs))
    jitted = as_jitted(func)
    entry = jitted.entry(args, kwargs)
    likes = entry.program.traced.output_examples()
    return entry.outputs.restore(list(map(without_values, likes)))


def without_values(like: torch.Tensor) -> torch.Tensor:
    """A tensor like ``like`` on the device ``"meta"``."""
    with fake.outside_modes():
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
