"""The one adapter over Inductor: a graph of ATen operators becomes machine code."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch.fx import GraphModule

from fxforms.staging import fake
from fxforms.staging.trace import Executable

# Random operators keep torch's own stream of numbers (fallback_random).
_OPTIONS = {"fallback_random": True}
_lock = threading.Lock()


def placeholders(graph: GraphModule) -> list[Any]:
    """The fake inputs of ``graph``."""
    return [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]


def compile_graph(graph: GraphModule) -> Executable:
    """``graph`` compiled by Inductor; takes a list of tensors, which it empties.

    Inductor's state is global, so one thread compiles at a time.
    """
    fakes = placeholders(graph)
    mode = detect_fake_mode(fakes)
    with _lock, torch.no_grad(), config.patch(_OPTIONS), tracing(TracingContext(mode)):
        with fake.tracer_lock:
            lowered = fake.record(graph, fakes, select_decomp_table())
            joint_graph_passes(lowered)
        compiled: Any = compile_fx_inner(lowered, fakes)
    return direct(compiled)


def direct(compiled: Any) -> Executable:
    """The generated code of ``compiled``, without the bookkeeping around it where it is idle."""
    checked = getattr(compiled, "inputs_to_check", None)
    run = getattr(compiled, "current_callable", None)
    chosen: Executable = compiled if checked or run is None else run
    return chosen
