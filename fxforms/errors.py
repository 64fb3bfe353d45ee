"""The exception classes of fxforms.

Every message says what was seen, where, and what to do next. Each class also derives from the
built-in exception that PyTorch raises for the same fault, so ``except RuntimeError`` around code
that moved here from ``torch.func`` keeps working.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import torch


class FxformsError(Exception):
    """Base class of every error that fxforms raises on purpose.

    Example:
        >>> import torch, fxforms
        >>> try:
        ...     fxforms.grad(lambda x: x)(torch.ones(3))
        ... except fxforms.errors.FxformsError as error:
        ...     print(type(error).__name__)
        OutputError
    """


class ArgumentError(FxformsError, ValueError, RuntimeError):
    """An argument of a transform, or of the transformed function, has a wrong value."""


class StructureError(FxformsError, ValueError, RuntimeError):
    """Two pytrees that must have one structure, or matching shapes, do not."""


class OutputError(FxformsError, ValueError, RuntimeError):
    """The transformed function returned something the transform cannot use."""


class RuleError(FxformsError, NotImplementedError):
    """A Function lacks a rule that a transform needs, or a rule broke its contract."""


class GradientError(FxformsError, RuntimeError):
    """A backward or jvp rule returned the wrong number or shape of derivatives."""


class EscapedTensorError(FxformsError, RuntimeError):
    """A tensor of a transform was used after the transform ended."""


class RpcError(FxformsError, RuntimeError):
    """A remote call failed. Base class of every error of ``fxforms.distributed``."""


class RpcTimeoutError(RpcError, TimeoutError):
    """A worker did not answer within the timeout of the call."""


class WorkerLostError(RpcError, ConnectionError):
    """The connection to a worker ended: it died, was shut down, or could not be reached."""


class MessageError(RpcError, ValueError):
    """A message cannot be encoded, or what arrived is not a message."""


class RemoteError(RpcError):
    """The function that a worker ran raised an error, which is said again here.

    What is raised is also an instance of the built-in or registered type that was raised there.

    Attributes:
        worker: the name of the worker on which the error was raised.
        remote_type: the name of its type, as ``module:qualname``.
        remote_text: its text.
        remote_traceback: the traceback, as that worker would print it.
    """

    worker: str
    remote_type: str
    remote_text: str
    remote_traceback: str


def name_of(func: Any) -> str:
    """The name by which an error message calls ``func``."""
    inner = getattr(func, "func", None)  # functools.partial
    if inner is not None and not hasattr(func, "__name__"):
        return f"partial({name_of(inner)})"
    name = str(getattr(func, "__name__", type(func).__name__))
    owner = getattr(func, "__self__", None)  # Cube.apply is called by its class, not as "apply"
    return f"{owner.__name__}.{name}" if isinstance(owner, type) else name


def describe(value: object) -> str:
    """A short description of ``value`` for a message: type, and for a tensor dtype and shape."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (int, float, str)):
        return repr(value)
    return f"a {type(value).__name__}"


class UnsupportedError(FxformsError, RuntimeError):
    """A feature of torch's autograd was used where it has no right meaning inside a transform."""


class MutationError(FxformsError, RuntimeError):
    """A transformed function changed in place a tensor that cannot carry the change."""


class TraceError(FxformsError, RuntimeError):
    """A function under ``jit`` did what cannot be traced."""


class CompileWarning(UserWarning):
    """A traced graph runs uncompiled because the compiler failed."""


# NOTE [torch's messages]
# Some faults only torch's C++ levels see. Their messages are known here by a fragment that no other
# message holds, and are said again with the name of the function and the way out. A message that is
# not known passes through as it is; tests/test_errors.py provokes each one.
_GRADIENT = (
    "The gradient of an input must have the shape of that input, or broadcast from it; return None "
    "for an input that has no gradient."
)
_ESCAPE = (
    "The function uses a tensor that was made inside a vmap which has ended. Such a tensor stands "
    "for one sample and has no value outside. Return it from the mapped function (out_dims says "
    "where its batch dim goes) instead of storing it."
)
_MUTATION = (
    "A derivative cannot pass through such a change. Give the tensor to the function as an "
    "argument, or clone it inside the function."
)
UNBATCHED = (
    "Under vmap only a tensor that has the batch can be changed in place by one that has. A tensor "
    "captured from outside, or made inside by a factory such as torch.zeros, has none: map over "
    "it, or make it from a mapped tensor (x.new_zeros, x.clone)."
)
RANDOM = (
    'Say what a random operation means for a batch: vmap(..., randomness="different") draws a '
    'number for each sample, randomness="same" one for all. So do jacfwd(..., randomness=...).'
)
_INNER = (
    "Inside a transform, write fxforms.grad(g)(v) in place of v.requires_grad_() with "
    "torch.autograd.grad(g(v), v) or g(v).backward(); it gives the same numbers and composes."
)
_DUAL = (
    "Inside a transform, write fxforms.jvp(g, (v,), (t,)) in place of forward_ad.make_dual(v, t); "
    "it gives the same numbers and composes."
)
_RETAIN = (
    "Inside a transform no tensor has a .grad. For the gradient of an intermediate, g(x) in "
    "h(g(x)), write fxforms.grad(h)(g(x))."
)
_HOOK = (
    "A hook sees gradients of fxforms.grad or vjp: register it inside the function that they "
    "differentiate, on a tensor that depends on its argument."
)
_MULTI_HOOK = (
    "A hook on several gradients needs .backward(), which no transform calls. Register one on each "
    "tensor with y.register_hook."
)
_POINTER = (
    "NumPy and C code cannot read a tensor that a transform follows. Put them into forward of an "
    "fxforms.Function, which gets plain tensors. (allow_mutation_on_saved_tensors is such code.)"
)
_DATA = "Under vmap, write x.detach() in place of x.data."
UNPACK = (
    "Under vmap the unpack hook of saved_tensors_hooks must return what pack returned, which that "
    "of save_on_cpu does not: torch takes the data of anything else. Compute in pack alone."
)
TURNED_OFF = (
    "requires_grad_(False) inside the function turned the derivative by its argument off. Write "
    "x.detach() where the argument is meant as a constant."
)
SAVED_HOOKS = (
    "Saved-tensor hooks (saved_tensors_hooks, save_on_cpu) run without recording, so the "
    "derivative that an outer level takes through what they return would be a silent zero. Use "
    "them around a first derivative only."
)
_KNOWN: tuple[tuple[str, type[FxformsError], str], ...] = (
    ("may have escaped from inside a function", EscapedTensorError, _ESCAPE),
    ("batched == nullptr", EscapedTensorError, _ESCAPE),
    ("would mutate a captured Tensor", MutationError, _MUTATION),
    ("is not possible because there exists a Tensor", MutationError, UNBATCHED),
    ("returned an invalid gradient at index", GradientError, _GRADIENT),
    ("expected Variable or None", GradientError, _GRADIENT),
    ("attempting to call Tensor.requires_grad_()", UnsupportedError, _INNER),
    ("backward() called inside a functorch transform", UnsupportedError, _INNER),
    ("does not require grad and does not have a grad_fn", UnsupportedError, _INNER),
    ("appears to not have been used in the graph", UnsupportedError, _INNER),
    ("requires_grad_(False) inside", UnsupportedError, TURNED_OFF),
    ("attempting to call Tensor.retain_grad()", UnsupportedError, _RETAIN),
    ("can't retain_grad on Tensor", UnsupportedError, _RETAIN),
    ("Batching rule not implemented for aten::_make_dual", UnsupportedError, _DUAL),
    ("Nested forward mode AD is not supported", UnsupportedError, _DUAL),
    ("cannot register a hook on a tensor that doesn't", UnsupportedError, _HOOK),
    ("_will_engine_execute_node", UnsupportedError, _MULTI_HOOK),
    ("Cannot access data pointer of Tensor", UnsupportedError, _POINTER),
    ("accessing `data` under vmap", UnsupportedError, _DATA),
    ("Saved-tensor hooks (saved_tensors_hooks", UnsupportedError, ""),
    ("called random operation while in randomness error mode", ArgumentError, RANDOM),
)


def _seen(kind: type[FxformsError], text: str) -> str:
    """The part of torch's message that tells what was seen."""
    if kind is GradientError:
        return f"{text.rstrip('. ')}. "
    if kind is UnsupportedError:
        return text if text == SAVED_HOOKS else ""
    operation = re.search(r"aten::(\w+)", text)
    return f"{operation[1]} would change a captured tensor in place. " if operation else ""


def translate(error: RuntimeError, where: str) -> None:
    """Raise a clearer error if torch's ``error`` is one of those known here; else do nothing."""
    if isinstance(error, FxformsError):
        return
    text = str(error)
    for fragment, kind, advice in _KNOWN:
        if fragment in text:
            if advice == _DATA and _from_engine(error):
                advice = UNPACK
            raise kind(f"{where}: {_seen(kind, text)}{advice}") from error


def _from_engine(error: BaseException) -> bool:
    """True if ``error`` comes from the autograd engine itself, not from Python that it runs."""
    last = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        last = frame.f_code.co_name
    return last == "run_backward"
