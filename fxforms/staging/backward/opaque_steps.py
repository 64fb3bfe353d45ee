"""The steps that are not torch operators: Functions, hooks, and a leaf's ``.grad``.

Each runs as the engine runs it, at every pass, so what it reads of the world is never fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch

from fxforms.errors import GradientError, UnsupportedError
from fxforms.functions.adopt import adopt
from fxforms.functions.context import as_tuple
from fxforms.staging.backward import engine
from fxforms.staging.backward.steps import Kind


class SavedContext:
    """A Function's ``ctx`` with other saved tensors; all else is the node's own."""

    _fx_lowered = False
    _fx_plain = False

    def __init__(self, node: Any, saved: Sequence[torch.Tensor | None]) -> None:
        self._fx_real = node
        self.saved_tensors = tuple(saved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fx_real, name)


def run_function(
    node: Any, saved: Sequence[Any], grads: Sequence[Any], materialize: bool, likes: Sequence[Any]
) -> tuple[Any, ...]:
    """The ``backward`` of the Function that ``node`` is of, on these saved tensors.

    ``likes`` tells device, dtype and shape of each gradient.
    """
    if materialize:
        grads = [zeros_for(i) if g is None else g for g, i in zip(grads, node._input_metadata)]
    if is_recorded_again(node, saved):
        return tuple(node._rules.backward_again(node, tuple(grads)))
    ctx = SavedContext(node, saved)
    function = node._forward_cls
    if getattr(function, "boxed_grads_call", False):  # compiled by torch
        return as_tuple(function.backward(ctx, list(grads)))
    rules = getattr(node, "_rules", None) or adopt(function)._rules
    return tuple(rules.run_backward(ctx, tuple(grads)))


def is_recorded_again(node: Any, saved: Sequence[Any]) -> bool:
    """True if ``node`` has residuals to be followed to its inputs: they are its own, not others."""
    if not torch.is_grad_enabled() or getattr(node, "_fx_operands", None) is None:
        return False
    return all(map(is_, saved, node.saved_tensors))


def zeros_for(metadata: Any) -> torch.Tensor:
    """The gradient of an output that nothing depends on."""
    return torch.zeros(metadata.shape, dtype=metadata.dtype, device=metadata.device)


def run_tensor_hook(hook: Any, grad: torch.Tensor | None) -> list[Any]:
    """A hook that may replace a gradient; it is not called without one."""
    replaced = None if grad is None else hook(grad)
    return [grad if replaced is None else replaced]


def run_cpp_hook(index: int, grad: torch.Tensor | None) -> list[Any]:
    """The same, written in C++."""
    return [None if grad is None else engine.run_cpp_hook(index, grad)]


def run_pre_hook(hook: Any, grads: list[Any]) -> Sequence[Any]:
    """A hook that may replace what a node is given."""
    return _same_number(hook, hook(tuple(grads)), grads)


def run_post_hook(hook: Any, outputs: list[Any], grads: list[Any]) -> Sequence[Any]:
    """A hook that may replace what a node returned."""
    return _same_number(hook, hook(tuple(outputs), tuple(grads)), outputs)


def _same_number(hook: Any, replaced: Any, values: list[Any]) -> Sequence[Any]:
    """What ``hook`` returned in place of ``values``."""
    if replaced is None:
        return values
    found = as_tuple(replaced)
    if len(found) != len(values):
        name = getattr(hook, "__qualname__", repr(hook))
        raise GradientError(
            f"The hook {name} returned {len(found)} gradients in place of {len(values)}. Return "
            f"one for each, or None to leave them as they are."
        )
    return found


def run_accumulate(
    variable: torch.Tensor, _: Any, grad: torch.Tensor | None, post_hooks: bool
) -> list[Any]:
    """Add ``grad`` to the ``.grad`` that ``variable`` has by now."""
    if grad is not None:
        variable.grad = engine.accumulated(variable, variable.grad, grad, post_hooks)
    return [variable.grad]


def run_post_accumulate_hook(hook: Any, variable: torch.Tensor) -> list[Any]:
    """A hook that is given a leaf whose ``.grad`` is ready."""
    if hook(variable) is not None:
        raise GradientError("A post-accumulate-grad hook must return None.")
    return [variable]


def run_unpack(hook: Any, packed: Any) -> list[Any]:
    """A saved tensor that a hook had packed."""
    return [hook(packed)]


class Unpacked(torch.autograd.Function):
    """What a hook unpacked, made to depend on ``sources`` by a derivative that is an error.

    The engine gives it the history of what was packed; that is not told.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        """``value``."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Raises UnsupportedError."""
        raise UnsupportedError(
            "A second derivative through a captured backward pass needs the history of a saved "
            "tensor that a hook had packed (checkpoint(..., use_reentrant=False), save_on_cpu, "
            "saved_tensors_hooks), which it does not have. Take this pass by eager autograd "
            "(create_graph=True outside of compiled_backward), or without those hooks."
        )


def differentiated_once(value: Any, sources: Sequence[torch.Tensor]) -> Any:
    """``value``, which a hook unpacked; a derivative through it by any of ``sources`` fails."""
    if not sources or not isinstance(value, torch.Tensor) or value.requires_grad:
        return value
    if not (value.is_floating_point() or value.is_complex()):
        return value
    return Unpacked.apply(value, *sources)  # type: ignore[no-untyped-call]


def followed(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among ``values`` that autograd follows."""
    return [x for x in values if isinstance(x, torch.Tensor) and x.requires_grad]


RUN: dict[Kind, Callable[..., Sequence[Any]]] = {
    Kind.FUNCTION: run_function,
    Kind.ACCUMULATE: run_accumulate,
    Kind.TENSOR_HOOK: run_tensor_hook,
    Kind.CPP_HOOK: run_cpp_hook,
    Kind.PRE_HOOK: run_pre_hook,
    Kind.POST_HOOK: run_post_hook,
    Kind.POST_ACCUMULATE_HOOK: run_post_accumulate_hook,
    Kind.UNPACK: run_unpack,
}
