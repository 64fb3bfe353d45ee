"""What a traced function may not do: ask for a value that is not there, or print it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fxforms import _substrate as substrate
from fxforms._tree import leaves
from fxforms.errors import TraceError, describe
from fxforms.functions.opaque import ValueNeeded
from fxforms.staging import fake
from fxforms.staging.branches import TRACER
from fxforms.staging.changes import ATTRIBUTES, Attributes, CapturedTraced
from fxforms.staging.reads import INSTALLED

_T = torch.Tensor
_ASKS: dict[Any, str] = {
    _T.__bool__: "a Python condition (if, while, and, or, not)",
    _T.item: "item()",
    _T.tolist: "tolist()",
    _T.__int__: "int()",
    _T.__float__: "float()",
    _T.__complex__: "complex()",
    _T.__index__: "an index",
    _T.__contains__: "the operator in",
    _T.data_ptr: "data_ptr()",
    _T.__dlpack__: "DLPack",
    _T.numpy: "numpy()",
    _T.__array__: "NumPy",
}
_SHOWS = {_T.__repr__, _T.__format__}
_WAYS_OUT = (
    "Inside jit a tensor has a shape but no value until the call. Choose between values with "
    "torch.where, between programs with fxforms.cond, make an argument that decides the program a "
    "static one (static_argnums), or call fxforms.pure_callback for a part that must run in Python."
)
_INDEX = (
    "If this is x[i] with a tensor i of one element, which Python would read, write "
    "x.index_select(0, i).squeeze(0). "
)
_LAYERS = "torch/nn/modules/"
MAX_TEXT = 100  # of a line of source


class PerhapsCaptured(Exception):
    """The function uses such a tensor, or maps over one that it captures."""


class TraceWatch(TorchFunctionMode):
    """Refuses, by the user's line, what a traced tensor cannot do.

    Attributes:
        attributes: what is read and replaced of tensors besides their numbers.
    """

    def __init__(self, depth: int, exact: bool) -> None:
        """``depth``: how many levels were active at the call of ``jit``.

        ``exact``: levels that are entered inside have numbers above ``depth``.
        """
        super().__init__()
        self.depth = depth
        self.attributes = Attributes()
        self.refusal = CapturedTraced if exact else PerhapsCaptured

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _ASKS:
            raise ValueNeeded(
                f"{user_line()}: {_ASKS[func]} needs the value of {describe(args[0])}. {_WAYS_OUT}",
                TRACER,
            )
        if args and isinstance(args[0], _T):
            self.attributes.note_asked(args[0])
        if func in ATTRIBUTES:
            refused = self.attributes.meet(func, args[0], is_traced(args[0]))
            if refused:
                raise TraceError(f"{user_line()}: {refused}")
        if func in _SHOWS and is_traced(args[0]):
            raise TraceError(
                f"{user_line()}: printing {describe(args[0])}, which has no value while jit "
                f"traces. Write fxforms.debug.print, which prints at every call."
            )
        if self.depth:
            for x in leaves((args, kwargs)):
                outer = isinstance(x, _T) and 0 < substrate.level_of(x) <= self.depth
                if outer and not is_traced(x):  # else of a level that was entered inside
                    raise self.refusal
        try:
            return func(*args, **(kwargs or {}))
        except fake.VALUE_ERRORS as error:
            raise value_error(error) from error


def is_traced(value: Any) -> bool:
    """True for a tensor without a value, under whatever wrappers."""
    while substrate.is_wrapped(value):
        value = substrate.unwrapped(value)
    return fake.is_fake(value)


def user_line() -> str:
    """File, line and text of the innermost frame that is the user's."""
    return place(traceback.extract_stack()) or "jit"


def place(frames: traceback.StackSummary) -> str:
    """The innermost of ``frames`` that is not in torch or fxforms, and the layer that it calls."""
    mine = [i for i, frame in enumerate(frames) if not frame.filename.startswith(INSTALLED)]
    told = [i for i in mine if frames[i].line] or mine  # without the source, it may be generated
    if not told:
        return ""
    frame = frames[told[-1]]
    text = frame.line or ""
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    layers = [x for x in frames[told[-1] + 1 :] if _LAYERS in x.filename and x.name != "__call__"]
    layer = f" (in {_LAYERS}{layers[-1].filename.split(_LAYERS)[1]})" if layers else ""
    return f"{frame.filename}:{frame.lineno}: {text}{layer}"


def with_place(name: str, error: RuntimeError) -> TraceError | None:
    """``error`` of an operator, said with the function and the line; None for one of the user."""
    frames = traceback.extract_tb(error.__traceback__)
    if type(error) is not RuntimeError or not frames[-1].filename.startswith(INSTALLED):
        return None
    return TraceError(f"jit of {name}: {place(frames) or 'in torch'}: {error}")


def value_error(error: BaseException) -> ValueNeeded:
    """The error for a value that an operator asked for, in the user's terms."""
    seen = (str(error) or type(error).__name__).splitlines()[0]
    hint = _INDEX if "_local_scalar_dense" in seen else ""
    text = f"{user_line()}: a traced tensor has no value to give ({seen}). {hint}{_WAYS_OUT}"
    return ValueNeeded(text, TRACER)
