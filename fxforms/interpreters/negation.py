"""The batch rule of lazy negation, which torch's vmap lacks.

``z.conj().imag`` is a view with a negation still to do; so is a gradient that passes ``conj`` and
then ``torch.complex``, as second derivatives of complex functions do.
"""

from __future__ import annotations

import torch

from fxforms import _substrate as substrate
from fxforms.interpreters.dispatch import current_interpreter

# What it registers lives as long as it does.
_library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_BATCHED = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)


def neg_view(operand: torch.Tensor) -> torch.Tensor:
    """``aten::_neg_view`` at a vmap level: the view of the whole batch."""
    interpreter = current_interpreter()
    value, dim = substrate.unwrap_batched(operand, interpreter.level)
    with torch._C._ExcludeDispatchKeyGuard(_BATCHED):  # one level down, as rules of torch go
        result: torch.Tensor = torch._neg_view(value)
    return result if dim is None else substrate.add_batch_dim(result, dim, interpreter.level)


def register_neg_view() -> None:
    """Register the rule for vmap levels of torch, which those of fxforms are."""
    _library.impl("_neg_view", neg_view, "FuncTorchBatched")  # type: ignore[no-untyped-call]
