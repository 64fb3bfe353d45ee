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
        r"expected .*, got |is .*, expected |\d+ tensors, expected ",
        "It ran, and the result is not what the oracle has.",
    ),
    Kind(
        "Crash or hang",
        r"^(no answer within|the process died)",
        "The process that ran the pair died, or gave no answer in time.",
    ),
    Kind(
        "Data-dependent shape or control flow under vmap",
        r"\.item\(\)|data-dependent|dynamic shape|would return|nonzero|masked_select",
        "The operator reads a value to decide on a shape or a branch, and a batch has many values.",
    ),
    Kind(
        "Random numbers under vmap",
        r"random",
        'The operator draws for a batched tensor, with `randomness="same"`.',
    ),
    Kind(
        "No batching rule",
        r"[Bb]atching rule|do not yet support|requires special handling|channels_last format"
        r"|doesn't have storage|in-?place arithmetic",
        "torch has no rule, or not the whole rule, for a batch of this operator.",
    ),
    Kind(
        "Sparse tensors",
        r"[Ss]parse",
        "A sample or a result is sparse; the levels wrap strided tensors only.",
    ),
    Kind(
        "A Function without the rule",
        r"autograd\.Function|vmap staticmethod|setup_context|Function",
        "torch's own implementation is a Function that lacks the rule.",
    ),
    Kind(
        "No derivative",
        r"derivative|forward AD|does not require grad|not differentiable",
        "torch has no formula for this derivative.",
    ),
)
OTHER = Kind("Other errors", "", "Anything else.")


def kind_of(reason: str) -> Kind:
    """The first kind whose pattern is found in ``reason``.

    Example:
        >>> kind_of("raised RuntimeError: vmap: calling .item() on a Tensor").title
        'Data-dependent shape or control flow under vmap'
    """
    return next((kind for kind in KINDS if re.search(kind.pattern, reason)), OTHER)
