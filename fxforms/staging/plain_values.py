"""Plain Python values of captured variables, and when two of them count as the same."""

from __future__ import annotations

import math
from typing import Any

import torch

from fxforms._tree import flatten

SIMPLE = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)


def same(value: object, known: object) -> bool:
    """True if two plain values are equal, of one type and one sign; NaN equals itself."""
    if value is known:
        return True
    return (
        type(value) is type(known) and value == known and is_negative(value) == is_negative(known)
    )


def is_negative(value: object) -> bool:
    """True for a float below zero, and for -0.0."""
    return type(value) is float and math.copysign(1.0, value) < 0


def snapshot(container: Any) -> tuple[Any, ...]:
    """The contents of a container, comparable: tensors and other objects by identity."""
    leaves, spec = flatten(container)
    contents = [x if isinstance(x, SIMPLE) else id(x) for x in leaves]
    return (spec, [(type(x), c, is_negative(x)) for x, c in zip(leaves, contents)])
