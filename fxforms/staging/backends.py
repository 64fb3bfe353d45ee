"""The one adapter over Inductor: a graph of ATen operators becomes machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner, get_cpp_wrapper_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch.fx import GraphModule, Node

from fxforms.staging import fake
from fxforms.staging.diagonals import shorten_diagonals
from fxforms.staging.graphs import examples_of
from fxforms.staging.locks import Lock
from fxforms.staging.merge import merge_products
from fxforms.staging.onednn import is_faster, use_onednn
from fxforms.staging.products import inline_products
from fxforms.staging.tanh import tanh
from fxforms.staging.trace import Executable

_OPTIONS = {
    # Random operators keep torch's own stream of numbers.
    "fallback_random": True,
    # The patterns would make addmm of mm and add, with a kernel more to lay its bias out.
    "pattern_matcher": False,
    # Else the first compilation of a process compiles four programs to try the instruction set that
    # the processor's flags tell, and precompiles headers for longer than it compiles the graph.
    "cpp.vec_isa_ok": True,
    "cpp_cache_precompile_headers": False,
}
_NOTE = "fxforms"  # the key of the note in a package
_tanh = torch.ops.aten.tanh.default
_lock = Lock()


def compile_graph(graph: GraphModule) -> Executable:
    """``graph`` compiled by Inductor; takes a list of tensors, which it empties.

    Inductor's state is global, so one thread compiles at a time.
    """
    fakes = examples_of(graph)
    lowered = lower(graph)  # before the lock: who traces may wait for a compilation
    wrapper = wants_cpp_wrapper(lowered)
    if is_faster():
        use_onednn(merge_products(lowered))
    context = tracing(TracingContext(detect_fake_mode(fakes)))
    with _lock, torch.no_grad(), context, config.patch(options(lowered, wrapper)):
        compiled: Any = compile_fx_inner(lowered, fakes, is_inference=True, cpp_wrapper=wrapper)
    # The rest of ``compiled`` keeps books around the generated code, at the cost of a small call.
    # A graph without operators comes back as a function.
    executable: Executable = getattr(compiled, "current_callable", None) or compiled
    return executable


def lower(graph: GraphModule) -> GraphModule:
    """``graph`` in the operators that Inductor takes."""
    fakes = examples_of(graph)
    with fake.tracer_lock, torch.no_grad(), config.patch(fallback_random=True):
        lowered = fake.record(graph, fakes, select_decomp_table() | {_tanh: tanh})
        lowered.graph = fx_graph_cse(lowered.graph)
        with V.set_fake_mode(detect_fake_mode(fakes)):
            joint_graph_passes(lowered)
        shorten_diagonals(lowered)
        inline_products(lowered)
        lowered.graph.eliminate_dead_code()
        lowered.recompile()
    return lowered


def options(graph: GraphModule, wrapper: bool) -> dict[str, Any]:
    """Inductor's options for ``graph``."""
    chosen: dict[str, Any] = {**_OPTIONS, "cpp_wrapper": wrapper}
    if wrapper:  # kernels and wrapper apart, the wrapper quickly
        chosen |= {**get_cpp_wrapper_config(), "cpp_wrapper_build_separate": True}
    if any(map(_is_grouped, graph.graph.nodes)):  # channels-last costs copies there
        chosen["layout_optimization"] = False
    return chosen


def _is_grouped(node: Node) -> bool:
    """True for the gradient of a convolution in groups, as one for each sample is made."""
    return _name(node) == "convolution_backward" and bool(node.args[9] != 1)


_LIBRARY_CALLS = {"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward"}


def wants_cpp_wrapper(graph: GraphModule) -> bool:
    """True where what calls the kernels is better written in C++ than in Python.

    In Python each call of a kernel or a library costs a microsecond, in C++ the first one does.
    """
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    return all(map(_is_builtin, calls)) and any(_name(node) in _LIBRARY_CALLS for node in calls)


def _name(node: Node) -> str:
    return str(getattr(node.target, "_opname", ""))


def _is_builtin(node: Node) -> bool:
    """False for an operator that Python implements."""
    return getattr(node.target, "namespace", "aten") in ("aten", "prims")


def compile_module(graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """``graph`` compiled for inputs like ``examples``; called as it is."""
    with _lock:
        compiled: Callable[..., Any] = torch._inductor.compile(graph, list(examples))
    return compiled


def write_package(
    module: torch.nn.Module, args: tuple[torch.Tensor, ...], path: str, note: str
) -> None:
    """Compile ``module`` ahead of time into a file with a ``note``, by torch's own packaging."""
    chosen = {"aot_inductor.metadata": {_NOTE: note}, "fallback_random": True}
    exported = torch.export.export(module, args, strict=False)
    with _lock:
        torch._inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs=chosen
        )


def read_package(path: str) -> tuple[Callable[..., Any], str | None]:
    """The callable in a file made by :func:`write_package`, and the note."""
    loaded: Any = torch._inductor.aoti_load_package(path)
    return loaded, loaded.loader.get_metadata().get(_NOTE)
