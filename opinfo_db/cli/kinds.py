"""Sorting what went wrong into kinds, by the first line of the error."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Failures that have one cause: a title, a pattern of the first line, and what it means."""

    title: str
    pattern: str
    meaning: str


#: In the order in which they are tried.
KINDS: tuple[Kind, ...] = (
    Kind(
        "Wrong value",
        r"^wrong value in |(shape|dtype|device) is .*, expected |\d+ tensors, expected ",
        "It ran, and the result is not what the oracle has.",
    ),
    Kind(
        "Crash or hang",
        r"^(no answer within|the process died)",
        "The process that ran the pair died, or gave no answer in time.",
    ),
    Kind(
        "A tensor outlived its level",
        r"may have escaped|EscapedTensorError",
        "A tensor of a transform was used after the transform ended.",
    ),
    Kind(
        "Sparse tensors",
        r"[Ss]parse",
        "A sample or a result is sparse; the levels wrap strided tensors only.",
    ),
    Kind(
        "Values read by the operator",
        r"\.item\(\)|data-dependent|dynamic shape|differently shaped|doesn't have storage",
        "A batch has many values and no storage of its own, and the operator reads one of them.",
    ),
    Kind(
        "Random numbers of a batched argument",
        r"randomness",
        'torch draws nothing for a batched tensor with `randomness="same"`.',
    ),
    Kind(
        "Updates in place",
        r"updated in place|_\(self, \*extra_args\)",
        "The operator updates a tensor that is not batched with one that is.",
    ),
    Kind(
        "No batching rule",
        r"[Bb]atching rule|do not yet support",
        "torch has no rule for a batch of this operator.",
    ),
    Kind(
        "Shape or layout of a batch",
        r"memory_format|channels_last|with stride 1|invalid for input of size|must match the size",
        "torch's rule for a batch asks for a shape or a layout that the batch does not have.",
    ),
    Kind(
        "A Function without the rule",
        r"autograd\.Function",
        "torch implements the operator by a Function that lacks the rule.",
    ),
    Kind(
        "Internal error of torch",
        r"INTERNAL ASSERT",
        "torch itself calls it a bug.",
    ),
)
OTHER = Kind("Other errors", "", "Anything else.")


def kind_of(reason: str) -> Kind:
    """The first kind whose pattern is found in ``reason``.

    Example:
        >>> kind_of("raised RuntimeError: vmap: calling .item() on a Tensor").title
        'Values read by the operator'
    """
    return next((kind for kind in KINDS if re.search(kind.pattern, reason)), OTHER)
