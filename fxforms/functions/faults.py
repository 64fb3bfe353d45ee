"""What is wrong with a Function's rules, said to its author."""

from __future__ import annotations

from typing import Any

from fxforms.errors import GradientError, RuleError, TraceError
from fxforms.functions.opaque import ValueNeeded
from fxforms.functions.signature import Signature
from fxforms.functions.unseen import is_unmappable

_ENGINE = (
    "backward() called inside",
    "attempting to call Tensor.requires_grad_()",
    "does not require grad and does not have a grad_fn",
    "torch.utils.checkpoint is incompatible",
)
_UNUSED = "appears to not have been used in the graph"
_CALLS = (
    "calls the autograd engine by torch.autograd.backward, through a reentrant checkpoint, or on a "
    "graph that forward kept"
)
_LEAVES = "leaves torch (NumPy, .item())"
_GRAD = (
    "Build the graph in the rule and write torch.autograd.grad(y, v, g), and use_reentrant=False "
    "in a checkpoint; it gives the same numbers and can be differentiated."
)
_TORCH = "Write the rule in torch, or as a Function of its own; for forward mode give a jvp rule."

_FAULTS = (
    (_ENGINE, _CALLS, _GRAD),
    (
        ("is not possible because there exists a Tensor",),
        "fills a tensor of its own in place that has no batch",
        "Build it by torch.cat, torch.stack or torch.nn.functional.pad in place of torch.zeros(3).",
    ),
    (
        ("doesn't work on out= or view ops", "don't support automatic differentiation"),
        "writes by out=, or calls what torch can neither map nor differentiate",
        "Write y = torch.cos(x) in place of torch.cos(x, out=y).",
    ),
)


def no_vmap_rule(name: str) -> RuleError:
    """The error for a Function whose author wants no derived vmap rule."""
    return RuleError(
        f'{name} has no vmap rule and vmap_method = "error". Add vmap(info, in_dims, *args), or '
        f"drop vmap_method to have the rule derived."
    )


def overwritten(name: str) -> RuleError:
    """The error for a body that changed its input before it proved unmappable."""
    return RuleError(
        f"{name} changed its input in place and then asked for the numbers of one sample, so it "
        f"can neither be mapped over a batch nor run again. Add a vmap rule, or set "
        f'vmap_method = "loop".'
    )


def residual_after_change(name: str) -> RuleError:
    """The error for a body that would have to run again and has changed its input."""
    return RuleError(
        f"{name} changed its input in place, and what it left on ctx (a number, or a tensor that "
        f"is neither an input nor an output) needs it to run again, which no earlier call has "
        f"shown. Save only inputs and outputs, or do not change the input in place."
    )


def overwritten_input(name: str) -> GradientError:
    """The error for a residual whose derivative needs an input that the body has changed."""
    return GradientError(
        f"{name}: a second derivative needs the derivative of what forward saved for backward, and "
        f"forward has overwritten its input. Save only inputs and outputs, or do not change the "
        f"input in place."
    )


def values_of_samples(name: str) -> GradientError:
    """The error for a rule that needs each sample's own values at a level that sees the batch."""
    return GradientError(
        f"{name} is called once for each sample of a batch, and keeps values other than tensors on "
        f"ctx, or draws random numbers, that differ between them: a second derivative cannot "
        f"follow them. Save tensors, pass random numbers in as an argument, or give it a vmap rule."
    )


def values_in_graph(name: str) -> TraceError:
    """The error for a body under ``jit`` that leaves numbers on ``ctx``."""
    return TraceError(
        f"{name}.forward leaves numbers or arrays on ctx, and jit cannot trace it, so the graph "
        f"would hold those of one call for good. Save them as tensors (ctx.save_for_backward)."
    )


def refuse_opaque(name: str, error: RuntimeError) -> None:
    """Raise GradientError if ``error`` says that a derivative rule leaves torch, or its functions.

    It still counts as unmappable: a vmap level around it may run the rule on one sample.
    """
    if isinstance(error, (GradientError, ValueNeeded)):
        return
    text = str(error.__cause__ or error)
    if _UNUSED in text:
        raise GradientError(
            f"{name}: a derivative rule asks torch.autograd.grad for a gradient by a tensor that "
            f"is not in the graph. A graph that forward keeps on ctx is not there once a level has "
            f"ended. {_GRAD}"
        ) from error
    found = [(what, way) for marks, what, way in _FAULTS if any(mark in text for mark in marks)]
    if not (found or is_unmappable(error)):
        return
    what, way = found[0] if found else (_LEAVES, _TORCH)
    fault = GradientError(
        f"{name}: a derivative rule {what}, and its own derivative is asked for: a second "
        f"derivative, or forward mode from backward. {way}"
    )
    fault.__cause__ = error.__cause__ or error
    raise fault


def saved_as_input(name: str) -> GradientError:
    """The error for a rule that asks the engine for a gradient by a tensor that it did not make."""
    return GradientError(
        f"{name}: a derivative rule asks torch.autograd.grad for a gradient by a saved tensor, on "
        f"which what it has detached may depend. Where the rule is recorded the two cannot be told "
        f"apart. Write w = w.detach().requires_grad_() first, and ask for the gradient by that."
    )


def no_derivative(name: str, mode: str) -> RuleError:
    """The error for a Function without any derivative rule."""
    return RuleError(
        f"{name} has neither a backward nor a jvp rule, and {mode} needs one. Add a backward or a "
        f"jvp staticmethod; either is derived from the other."
    )


def check_count(
    name: str, signature: Signature, gradients: tuple[Any, ...], count: int
) -> tuple[Any, ...]:
    """``gradients``, one for each input of forward; else raises GradientError.

    As in torch, more of them may follow if they are None. A named tuple may be that of one input.
    """
    if len(gradients) == count or (
        len(gradients) > count and all(g is None for g in gradients[count:])
    ):
        return gradients
    if count == 1 and hasattr(gradients, "_fields"):
        return (gradients,)
    raise GradientError(
        f"{name}.backward returned {counted(len(gradients), 'gradient')} for "
        f"{counted(count, 'input')} ({', '.join(signature.names(count))}). Return one for each "
        f"input of forward, None for one that has no gradient."
    )


def counted(count: int, noun: str) -> str:
    """``count`` and ``noun``, in the plural if need be."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
