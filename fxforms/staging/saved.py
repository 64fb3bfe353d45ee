"""What a file says of the function in it, and the check of each call against that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fxforms import _substrate as substrate
from fxforms._tree import flatten, leaf_paths, show
from fxforms.errors import ArgumentError, describe
from fxforms.staging import fake
from fxforms.staging.program import laid_out
from fxforms.staging.signature import carries_tangent, is_plain

# Values that their repr tells, in any process: True from 1, 0.0 from -0.0.
_TOLD = (type(None), bool, int, float, complex, str, bytes)
_TOLD_BY_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_JSON = (type(None), bool, int, float, str)


class Like(NamedTuple):
    """A tensor argument: what compiled code reads without looking."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device

    def matches(self, tensor: torch.Tensor) -> bool:
        """True if the code may read ``tensor``, once it is laid out."""
        same = tensor.dtype == self.dtype and tensor.shape == self.shape
        return same and tensor.device == self.device and is_memory(tensor)

    def __str__(self) -> str:
        return f"a {self.dtype} tensor of shape {self.shape} on {self.device}"


def signature_text(name: str, args: tuple[Any, ...], outputs: Sequence[Any]) -> str:
    """What the file is to say: the arguments, and the leaves of the output that are no tensors.

    Raises:
        ArgumentError: one of these values is nothing that a file can tell.
    """
    flat, spec = flatten(args)
    for path, leaf in zip(leaf_paths(args, "args"), flat):
        if not isinstance(leaf, (torch.Tensor, *_TOLD, *_TOLD_BY_TORCH)):
            raise ArgumentError(
                f"save of {name}: {path} is {describe(leaf)}, which a file cannot compare at a "
                f"call. Pass tensors, numbers, strings or dtypes, or bind it (functools.partial)."
            )
    for leaf in outputs:
        if not isinstance(leaf, _JSON):
            raise ArgumentError(
                f"save of {name}: it returns {describe(leaf)}, which a file cannot hold. Return "
                f"tensors, numbers, strings or None."
            )
    arguments = [_tensor_data(x) if isinstance(x, torch.Tensor) else repr(x) for x in flat]
    told = {"name": name, "structure": show(spec), "arguments": arguments, "outputs": outputs}
    return json.dumps(told)


def _tensor_data(tensor: torch.Tensor) -> list[Any]:
    """A tensor as plain data."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [dtype, list(tensor.shape), list(tensor.stride()), str(tensor.device)]


class Saved:
    """A function from a file; a call is checked before the compiled code reads anything."""

    def __init__(self, run: Callable[..., Any], text: str) -> None:
        told = json.loads(text)
        self.__name__ = self.__qualname__ = str(told["name"])
        self._run = run
        self._structure: str = told["structure"]
        self._arguments = [x if isinstance(x, str) else _like(x) for x in told["arguments"]]
        self._likes = [x for x in self._arguments if isinstance(x, Like)]
        self._outputs = {i: x for i, x in enumerate(told["outputs"]) if x is not None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function at these arguments."""
        if kwargs:
            raise self._refused(f"it takes no keyword argument, and was given {list(kwargs)}")
        flat, spec = flatten(args)
        if show(spec) != self._structure:
            raise self._refused(
                f"it was saved for arguments of the structure {self._structure}, and was given "
                f"{show(spec)}"
            )
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        self._refuse_followed(tensors)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            first = next(i for i, x in enumerate(flat) if getattr(x, "requires_grad", False))
            raise self._refused(
                f"{leaf_paths(args, 'args')[first]} requires grad, and compiled code records no "
                f"derivative. Detach it, call under torch.no_grad(), or save fxforms.grad of the "
                f"function"
            )
        for index, (wanted, given) in enumerate(zip(self._arguments, flat)):
            if not fits(wanted, given):
                where = leaf_paths(args, "args")[index]
                raise self._refused(f"{where} is {shown(given)}, and it was saved for {wanted}")
        with torch.no_grad():
            return self._filled(self._run(*map(_ready, tensors, self._likes)))

    def _filled(self, output: Any) -> Any:
        """``output`` with the leaves that are no tensors."""
        if not self._outputs:
            return output
        leaves, spec = flatten(output)
        return spec.unflatten([self._outputs.get(i, x) for i, x in enumerate(leaves)])

    def _refuse_followed(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ArgumentError if something would have to see what the code computes."""
        if any(map(substrate.is_wrapped, tensors)) or carries_tangent(tensors):
            raise self._refused(
                "a transform follows its arguments, and compiled code has no rules. Save the "
                "transformed function, such as fxforms.grad(f), or give this one rules "
                "(fxforms.Function)"
            )
        if fake.must_stage(tensors):
            raise self._refused(
                "it is called while jit traces, which cannot look into compiled code. Call it by "
                "fxforms.pure_callback"
            )

    def _refused(self, why: str) -> ArgumentError:
        return ArgumentError(f"{self.__name__} (loaded): {why}.")


def _like(data: Sequence[Any]) -> Like:
    dtype, shape, strides, device = data
    return Like(getattr(torch, dtype), tuple(shape), tuple(strides), torch.device(device))


def _ready(tensor: torch.Tensor, like: Like) -> torch.Tensor:
    """``tensor`` as the code reads it: no lazy conjugate, and the strides that were saved."""
    return laid_out(tensor.detach().resolve_conj().resolve_neg(), like.strides)


def fits(wanted: Like | str, given: Any) -> bool:
    """True if ``given`` is an argument that the file was saved for."""
    if isinstance(given, torch.Tensor):
        return isinstance(wanted, Like) and wanted.matches(given)
    return wanted == repr(given)


def shown(value: Any) -> str:
    """An argument as a message shows it."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    text = f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    return text if is_memory(value) else f"{text} ({type(value).__name__}, {value.layout})"


def is_memory(tensor: torch.Tensor) -> bool:
    """False for a subclass, whose numbers may be elsewhere, and for a sparse tensor."""
    if tensor.layout is not torch.strided:
        return False
    return is_plain(tensor.resolve_conj().resolve_neg())
