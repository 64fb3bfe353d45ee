"""Cutting a joint graph of outputs and gradients into a forward and a backward part."""

from __future__ import annotations

from functorch.compile import (  # type: ignore[import-untyped]
    min_cut_rematerialization_partition,
)
from torch.fx import GraphModule

from fxforms.staging.graphs import inputs_of, output_of
from fxforms.staging.trace import Traced


def name_inputs(graph: GraphModule, primals: int, cotangents: int) -> None:
    """Give the inputs the names by which the partitioner tells cotangents ("tangents") apart."""
    for index, node in enumerate(inputs_of(graph)):
        if index < primals or index >= primals + cotangents:
            name = f"primals_{index + 1}"
        else:
            name = f"tangents_{index - primals + 1}"
        node.target = name
        node.name = name
    graph.recompile()


def gather_effects(traced: Traced, count: int) -> int:
    """Move tokens and written values to behind the first ``count`` outputs; returns their number.

    They belong to the forward part.
    """
    last = output_of(traced.graph)
    outputs = list(last.args[0])
    effects = traced.tokens + len(traced.written)
    cut_off = len(outputs) - effects
    last.args = ((*outputs[:count], *outputs[cut_off:], *outputs[count:cut_off]),)
    traced.graph.recompile()
    return effects


def unused(graph: GraphModule, primals: int, cotangents: int) -> list[bool]:
    """For each cotangent, whether no gradient depends on it."""
    return [not node.users for node in inputs_of(graph)[primals : primals + cotangents]]


def cut(joint: GraphModule, count: int) -> tuple[GraphModule, GraphModule]:
    """``joint`` as a forward part of ``count`` outputs and residuals, and a backward part."""
    both: tuple[GraphModule, GraphModule] = min_cut_rematerialization_partition(
        joint, None, num_fwd_outputs=count
    )
    return both
