"""A remote function as an instance of the operator, and what each transform makes of it.

A transform rewrites the remote function, so the whole batch of a vmap, and a primal with its
tangent, are one message. For reverse mode see NOTE [residuals stay on the worker].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fxforms.distributed import remote_nodes
from fxforms.distributed.context import current_context
from fxforms.distributed.parts import (
    Part,
    ask_all,
    ask_all_unrecorded,
    divide,
    join_pieces,
    numbered,
    spread,
)
from fxforms.distributed.transformed import evaluate, evaluate_operator
from fxforms.functions.bind import bind
from fxforms.functions.inline import any_dual, recorded
from fxforms.interpreters import Primitive
from fxforms.transforms.flat import Tensors, is_inexact


class RemoteCall(Primitive):
    """One call of a function on one or more workers, under transforms: an instance of the operator.

    Its operands are the tensors of the call, its outputs those that the function returns.

    Attributes:
        counts: how many outputs each part has; known after the call.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)
        self.counts: list[int] = []
        workers = ", ".join(repr(part.worker.name) for part in parts)
        self.__name__ = f"{parts[0].name} on worker {workers}"

    def bind(self, *operands: torch.Tensor) -> Tensors:
        """The operator, at the level now on top."""
        outputs: Tensors = bind(self, operands)
        return outputs

    def evaluate(self, *operands: torch.Tensor) -> Tensors:
        """The call, with no level active."""
        if any_dual(operands):
            return remote_nodes.with_tangents(self, operands)
        if current_context() is None and recorded(operands):
            return remote_nodes.apply_plain(self, operands)
        requests = [(*part.described, *xs) for part, xs in numbered(self.parts, operands)]
        captures = current_context() is not None or not all(p.is_operator for p in self.parts)
        if captures:
            answers = ask_all(evaluate, self.parts, requests)
        else:  # nothing is left that has a gradient
            answers = ask_all_unrecorded(evaluate_operator, self.parts, requests)
        for part, (returned, drawn, _) in zip(self.parts, answers):
            part.returned[0], part.drawn[0] = returned, drawn
        return self.gather([outputs for _, _, outputs in answers])

    def gather(self, outputs: Sequence[Tensors]) -> Tensors:
        """The outputs of all parts."""
        self.counts = [len(xs) for xs in outputs]
        return join_pieces(outputs)

    def grad_rule(self, *operands: torch.Tensor) -> Tensors:
        """A node of the top level's graph."""
        return remote_nodes.apply_at_level(self, operands)

    def jvp_rule(
        self, primals: Tensors, tangents: tuple[torch.Tensor | None, ...]
    ) -> tuple[Any, Any]:
        """One call with primals and tangents."""
        parts, operands, moves = [], [], []
        for (part, xs), (_, ts) in zip(
            numbered(self.parts, primals), numbered(self.parts, tangents)
        ):
            mask = [t is not None for t in ts]
            given = [t for t in ts if t is not None]
            moves.append(any(mask))
            parts.append(part.under(part.count + len(given), "jvp", mask) if given else part)
            operands += [*xs, *given]
        pushed = RemoteCall(parts)
        results = pushed.bind(*operands)
        outputs: list[torch.Tensor] = []
        out_tangents: list[torch.Tensor | None] = []
        self.counts = []
        for found, moving in zip(divide(results, pushed.counts), moves):
            count = primal_count(found) if moving else len(found)
            rest = iter(found[count:])
            outputs += found[:count]
            out_tangents += [
                next(rest) if moving and is_inexact(x) else None for x in found[:count]
            ]
            self.counts.append(count)
        return tuple(outputs), tuple(out_tangents)

    def vmap_rule(
        self, info: Any, in_dims: tuple[int | None, ...], operands: Tensors
    ) -> tuple[Any, Any]:
        """One call with the whole batch."""
        parts, out_dims = [], []
        for part, dims in numbered(self.parts, in_dims):
            batched = any(dim is not None for dim in dims)
            transform = ("vmap", list(dims), info.randomness, info.batch_size)
            parts.append(part.under(part.count, *transform) if batched else part)
            out_dims.append(0 if batched else None)
        mapped = RemoteCall(parts)
        outputs = mapped.bind(*operands)
        self.counts = mapped.counts
        return outputs, spread(out_dims, self.counts)

    def pullback(
        self, mask: Sequence[bool], operands: Sequence[Any], cotangents: Sequence[torch.Tensor]
    ) -> Tensors:
        """Gradients of the operands in ``mask``, as a function of operands and cotangents."""
        parts, given = [], []
        cts = divide(cotangents, self.counts)
        for (part, xs), (_, chosen), ys in zip(
            numbered(self.parts, operands), numbered(self.parts, mask), cts
        ):
            if any(chosen):
                inexact = [y for y in ys if is_inexact(y)]
                parts.append(part.under(part.count + len(inexact), "vjp", list(chosen)))
                given += [*xs, *inexact]
        return RemoteCall(parts).bind(*given)


def primal_count(results: Sequence[torch.Tensor]) -> int:
    """How many of ``results`` are outputs, before the tangents of the inexact ones."""
    count = total = 0
    while total < len(results):
        total += 2 if is_inexact(results[count]) else 1
        count += 1
    return count
