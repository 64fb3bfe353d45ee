"""Random numbers of a pass that runs twice: the second run draws what the first one drew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import get_device_states, set_device_states

from fxforms.functions.draws import is_random
from fxforms.staging.graphs import all_nodes

State = tuple[torch.Tensor, Any]


def is_draw(node: Node) -> bool:
    """True for a call of an operator that draws random numbers."""
    return is_random(node.target)


def draws(graph: GraphModule) -> bool:
    """True if ``graph`` draws random numbers, or calls Python bodies, which may."""
    return any(
        is_draw(node) or getattr(node.target, "namespace", "") == "fxforms"
        for node in all_nodes(graph)
    )


def random_state(tensors: Sequence[torch.Tensor]) -> State:
    """The generators of the CPU and of the devices of ``tensors``."""
    return torch.get_rng_state(), get_device_states(*tensors)


@contextlib.contextmanager
def drawing_from(state: State | None, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Draw as from ``state``, and leave the generators as they were; None changes nothing."""
    if state is None:
        yield
        return
    before = random_state(tensors)
    _set(state)
    try:
        yield
    finally:
        _set(before)


def _set(state: State) -> None:
    torch.set_rng_state(state[0])
    set_device_states(*state[1])
