"""Donated arguments: a graph that writes its outputs into the memory of inputs given up."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from fxforms.staging.graphs import inputs_of, output_of
from fxforms.staging.trace import Traced

_copy = torch.ops.aten.copy_.default


def donating(traced: Traced, donated: Sequence[int]) -> Traced:
    """``traced`` with each donated input holding an output of its layout, where there is one."""
    graph = copy.deepcopy(traced.graph)
    inputs, last = inputs_of(graph), output_of(graph)
    outputs: list[Any] = list(last.args[0])
    for index in donated:
        place = next((i for i, x in enumerate(outputs) if fits(x, inputs[index], inputs)), None)
        if place is not None and not handed_out(inputs[index], outputs):
            with graph.graph.inserting_before(last):
                made = graph.graph.call_function(_copy, (inputs[index], outputs[place]))
            made.meta = dict(outputs[place].meta)
            outputs[place] = made
    last.args = (tuple(outputs),)
    graph.recompile()
    return replace(traced, graph=graph)


def fits(output: Any, given: Node, inputs: list[Node]) -> bool:
    """True if ``output`` is computed, and laid out like the input ``given``."""
    if not isinstance(output, Node) or output in inputs or output.target is _copy:
        return False
    new, old = output.meta["val"], given.meta["val"]
    return bool(
        (new.shape, new.stride(), new.dtype) == (old.shape, old.stride(), old.dtype)
        and new.is_contiguous()
    )


def handed_out(given: Node, outputs: list[Any]) -> bool:
    """True if an output shares memory with the input ``given``."""
    memory = given.meta["val"].untyped_storage()._cdata
    values = [x.meta["val"] for x in outputs if isinstance(x, Node)]
    return any(x.untyped_storage()._cdata == memory for x in values)
