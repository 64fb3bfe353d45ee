"""The nodes of a captured graph that are not torch operators.

Each is a callable, so the graph can be run, printed, mapped and differentiated as it is. It runs
the user's code at every call: what that reads of the world is never fixed in the graph. Results
are contiguous, as the nodes after it were traced for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms.errors import UnsupportedError
from fxforms.staging.backward.formulas import run_formula
from fxforms.staging.backward.opaque_steps import (
    run_function,
    run_post_accumulate_hook,
    run_post_hook,
    run_pre_hook,
    run_tensor_hook,
)
from fxforms.staging.backward.steps import Step


def identifier(text: str) -> str:
    """``text`` as part of a Python name."""
    return re.sub(r"\W+", "_", text).strip("_")


class OpaqueNode:
    """A node of a graph that calls ``function``."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.__name__ = identifier(name)
        self.__qualname__ = self.__name__
        self.__module__ = "fxforms"
        self.function = function

    def __call__(self, *args: Any) -> tuple[torch.Tensor | None, ...]:
        found = self.function(*args)
        return tuple([x if x is None else x.contiguous() for x in found])


def function_node(
    step: Step, node: Any, materialize: bool, likes: Sequence[Any], check: Step | None
) -> OpaqueNode:
    """The backward of the Function that ``node`` is of, and the engine's check of its gradients.

    An absent gradient counts as zeros here: what a node returns must not vary from call to call.
    """

    def run(saved: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        found = run_function(node, saved, grads, materialize, likes)
        present = [x if x is not None else zeros_like(like) for x, like in zip(found, likes)]
        if check is None:
            return present
        values = {slot.place: x for slot, x in zip(step.results, present)}
        return run_formula(check, check.given(values))

    return OpaqueNode(step.name, run)


def zeros_like(like: Any) -> torch.Tensor | None:
    """Zeros of a device, dtype and shape; None for an input that has no gradient."""
    if like is None:
        return None
    device, dtype, shape = like
    return torch.zeros(shape, dtype=dtype, device=device)


def formula_node(step: Step) -> OpaqueNode:
    """A built-in node whose formula depends on numbers, or is C++ that cannot be traced."""
    return OpaqueNode(step.name, lambda *args: run_formula(step, list(args)))


def hook_name(kind: str, hook: Any) -> str:
    """The name of the node of ``hook``, which tells the hook's own."""
    name = getattr(hook, "__name__", type(hook).__name__)
    return kind if name == "<lambda>" else f"{kind}_{name}"


def tensor_hook_node(hook: Any) -> OpaqueNode:
    """A hook of a tensor."""
    return OpaqueNode(hook_name("tensor_hook", hook), lambda grad: run_tensor_hook(hook, grad))


def pre_hook_node(hook: Any) -> OpaqueNode:
    """A hook before a node."""
    return OpaqueNode(hook_name("pre_hook", hook), lambda grads: run_pre_hook(hook, grads))


def post_hook_node(hook: Any) -> OpaqueNode:
    """A hook after a node."""
    return OpaqueNode(
        hook_name("post_hook", hook), lambda outputs, grads: run_post_hook(hook, outputs, grads)
    )


def post_accumulate_node(hook: Any, variable: torch.Tensor) -> OpaqueNode:
    """A hook that is given a leaf with its ``.grad``; what it leaves there is the result.

    The leaf's own ``.grad`` is as before afterwards.
    """
    name = hook_name("post_accumulate_grad_hook", hook)

    def run(grad: torch.Tensor) -> list[Any]:
        if substrate.transforms_active():
            raise UnsupportedError(
                f"{name} is given a leaf with its .grad, which no transform follows. Capture with "
                f"inputs= to leave such hooks out, or remove the hook."
            )
        before = variable.grad
        variable.grad = grad
        try:
            run_post_accumulate_hook(hook, variable)
            return [variable.grad]
        finally:
            variable.grad = before

    return OpaqueNode(name, run)


def accumulate_grad(current: torch.Tensor | None, grad: torch.Tensor) -> torch.Tensor:
    """AccumulateGrad as a function: the new ``.grad`` of a leaf."""
    return grad if current is None else current + grad


accumulate_grad.__module__ = "fxforms"
