"""The one adapter over fake tensors and the tracer that records what runs on them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
from torch._C import DisableTorchFunction
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import (
    SYMPY_INTERP,
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils._python_dispatch import _disable_current_modes

from fxforms import _substrate as substrate
from fxforms.staging.locks import Lock

__all__ = ["DisableTorchFunction", "DispatchMode", "disable_proxy_modes_tracing"]

# The tracer changes methods of nn.Module while it runs, so one thread traces at a time.
tracer_lock = Lock(steady=True)

MAX_REMEMBERED = 10_000

# What a fake tensor raises where a value would have to be known.
VALUE_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
)


def new_mode(dynamic: bool = False) -> FakeTensorMode:
    """A mode under which tensors have everything but values; real tensors may enter.

    torch remembers what each operator gives for each shape, without a bound, in the whole process.
    """
    if len(FakeTensorMode.cache) > MAX_REMEMBERED:
        FakeTensorMode.cache_clear()
    shapes = ShapeEnv() if dynamic else None
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)


def fake_like(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake leaf like ``tensor``, of whatever level; its sizes are symbols in a dynamic mode."""
    if mode.shape_env is None:
        with mode:
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
    else:
        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
        made = mode.from_tensor(tensor.detach(), symbolic_context=context)
    made.requires_grad_(tensor.requires_grad)
    if tensor.requires_grad and not tensor.is_leaf:  # may be changed in place, as no leaf may
        with mode, torch.enable_grad():
            made = made.clone(memory_format=torch.preserve_format)
    return made


def sizes_guard(fakes: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], bool]:
    """A check that a graph traced on ``fakes`` serves tensors of these sizes."""
    mode = detect_fake_mode(fakes)
    shapes = None if mode is None else mode.shape_env
    if shapes is None:
        return lambda tensors: True
    placeholders: Any = list(fakes)
    code = shapes.produce_guards_expression(placeholders, ignore_static=False)
    if not code:
        return lambda tensors: True
    # What ShapeEnv.evaluate_guards_expression does, which compiles the text at every call.
    test = compile(code, "<sizes>", "eval")
    names = [f"t{i}" for i in range(len(placeholders))]
    return lambda tensors: bool(eval(test, SYMPY_INTERP, {"L": dict(zip(names, tensors))}))


def must_stage(operands: Sequence[torch.Tensor]) -> bool:
    """True if a call of Python on ``operands`` must go into the graph that is being recorded.

    One of them is traced; or none is batched or differentiated, so that all are of the graph.
    """
    if any(map(is_fake, operands)):
        return True
    recording = proxy_tensor._CURRENT_MAKE_FX_TRACER is not None and detect_fake_mode() is not None
    return recording and not any(map(substrate.is_wrapped, operands))


def is_fake(value: object) -> bool:
    """True for a fake tensor."""
    return isinstance(value, FakeTensor)


def tracing() -> bool:
    """True while this thread runs on fake tensors, or records a graph."""
    if not substrate.dispatch_modes():
        return False
    return get_proxy_mode() is not None or detect_fake_mode() is not None


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Keep torch from printing, with its own frames, what it raises as well."""
    thread = get_ident()
    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


@contextlib.contextmanager
def _dynamo_passes() -> Iterator[None]:
    """Let a function that torch.compile wraps run as it is under the tracer."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        yield
        return
    with dynamo.config.patch(error_on_nested_fx_trace=False):
        yield


def record(
    function: Callable[..., Any],
    fakes: Sequence[torch.Tensor],
    decompositions: Any = None,
    mode: FakeTensorMode | None = None,
) -> GraphModule:
    """The ATen operators that ``function`` runs on ``fakes``, as a graph.

    Its source is written when it first runs, not by each rewrite: FX keeps every source for good.
    """
    mode = mode or detect_fake_mode(fakes) or new_mode()
    with mode, _dynamo_passes(), _use_lazy_graph_module(True), _without_log():
        return make_fx(function, decomposition_table=decompositions)(*fakes)


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Run on real tensors in the middle of a trace."""
    with DisableTorchFunction(), _disable_current_modes():
        yield


def new_input(mode: FakeTensorMode, tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A further input of the graph that is being recorded, for ``tensor``.

    That is a real tensor, or a fake one of the graph around, which stands for itself.
    """
    made = tensor if is_fake(tensor) else stand_in(mode, tensor)
    recorder = get_proxy_mode()
    assert recorder is not None
    graph = recorder.tracer.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1:]
    with graph.inserting_after(last[0]) if last else graph.inserting_before():
        proxy = recorder.tracer.create_proxy("placeholder", name, (), {})
    track_tensor_tree(made, proxy, constant=None, tracer=recorder.tracer)
    return made


def stand_in(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor for a real one, always the same."""
    with outside_modes():
        alike = tensor if tensor.is_leaf else tensor.detach()  # what is asked of a leaf alone warns
    with DisableTorchFunction():  # what the conversion asks of it is not asked by the function
        made: torch.Tensor = mode.from_tensor(alike, static_shapes=True)
    return made


_recorders: list[Any] = []  # of the graphs around the part that is being recorded


def is_recorded(tensor: torch.Tensor) -> bool:
    """True if the graph that is being recorded has this fake tensor, also where that rests."""
    recorder: Any = proxy_tensor._CURRENT_MAKE_FX_TRACER
    return tensor in recorder.fx_tracer.tensor_tracker


def is_recorded_around(tensor: torch.Tensor) -> bool:
    """True if that graph has it, or one of those that it is a part of."""
    return is_recorded(tensor) or any(tensor in x.tensor_tracker for x in _recorders)


def is_aside() -> bool:
    """True where nothing is being recorded."""
    return get_proxy_mode() is None


def mode_of(tensors: Sequence[torch.Tensor]) -> FakeTensorMode:
    """The mode of the trace under way."""
    mode: Any = detect_fake_mode(tensors)
    return mode  # type: ignore[no-any-return]


def record_part(function: Callable[..., Any], fakes: Sequence[torch.Tensor]) -> GraphModule:
    """The operators that ``function`` runs on ``fakes``, as a graph inside of the one recorded."""
    recorder: Any = proxy_tensor._CURRENT_MAKE_FX_TRACER
    _recorders.append(recorder.fx_tracer)
    try:
        part: GraphModule = recorder.trace_subgraph(function, *fakes)
    finally:
        _recorders.pop()
    return part
