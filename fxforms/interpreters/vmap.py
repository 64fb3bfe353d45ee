"""Vectorisation: the level of ``vmap``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fxforms import _substrate as substrate
from fxforms._tree import broadcast_prefix, flatten
from fxforms.errors import RuleError, describe
from fxforms.interpreters.stack import Interpreter, Primitive


class VmapInfo(NamedTuple):
    """What a vmap rule is told of its level.

    Attributes:
        batch_size: the size of the mapped dimension.
        randomness: ``"error"``, ``"same"`` or ``"different"``, as given to ``vmap``.

    Example:
        >>> import fxforms
        >>> fxforms.VmapInfo(batch_size=3, randomness="error").batch_size
        3
    """

    batch_size: int
    randomness: str


_RANDOMNESS = {
    int(substrate.RandomnessType.Error): "error",
    int(substrate.RandomnessType.Same): "same",
    int(substrate.RandomnessType.Different): "different",
}


class VmapInterpreter(Interpreter):
    """Hands the physical tensors and their batch dims to the operator's vmap rule."""

    transform = "vmap"

    def process(self, fn: Primitive, operands: tuple[Any, ...]) -> Any:
        """Apply ``fn``'s vmap rule, or pass the call down where nothing is batched here."""
        level, unwrap = self.level, substrate.unwrap_batched
        pairs = [unwrap(x, level) if isinstance(x, torch.Tensor) else (x, None) for x in operands]
        in_dims = tuple([dim for _, dim in pairs])
        if all(dim is None for dim in in_dims):
            with self.lower():
                return fn.bind(*operands)
        inner = tuple([value for value, _ in pairs])
        info = self.info()
        with self.lower():
            result = fn.vmap_rule(info, in_dims, inner)
        check_pair(fn.__name__, level, result)
        known = [(x, d, operand) for (x, d), operand in zip(pairs, operands)]
        return self.wrap(fn, *result, known)

    def info(self) -> VmapInfo:
        """Batch size and randomness of this level."""
        handle = substrate.VmapHandle(self._handle)
        return VmapInfo(handle.batchSize(), _RANDOMNESS[int(handle.randomness())])

    def wrap(
        self,
        fn: Primitive,
        outputs: Any,
        out_dims: Any,
        known: list[tuple[Any, int | None, Any]],
    ) -> Any:
        """``outputs`` batched at this level; a returned operand stays the same object.

        ``known`` holds each operand's physical value, its in_dim and itself.
        """
        if isinstance(outputs, torch.Tensor) and (out_dims is None or isinstance(out_dims, int)):
            return self.wrap_one(fn, outputs, out_dims, known)
        flat, spec = flatten(outputs)
        dims = broadcast_prefix(out_dims, spec, f"{fn.__name__}.vmap", "out_dims")
        wrapped = [self.wrap_one(fn, output, dim, known) for output, dim in zip(flat, dims)]
        return spec.unflatten(wrapped)

    def wrap_one(
        self,
        fn: Primitive,
        output: Any,
        dim: int | None,
        known: list[tuple[Any, int | None, Any]],
    ) -> Any:
        """One output of a vmap rule, batched along ``dim``."""
        if not isinstance(output, torch.Tensor):
            return output
        for value, in_dim, operand in known:
            if output is value and dim == in_dim:
                return operand
        if dim is None:
            return output
        size = self.info().batch_size
        rank = output.dim()
        if not -rank <= dim < rank or output.shape[dim] != size:
            raise RuleError(
                f"{fn.__name__}.vmap (level {self.level}) gave out_dim {dim} for an output of "
                f"shape {tuple(output.shape)}, but the batch size is {size}. out_dims names the "
                f"dim that holds the batch, or is None for an output without one."
            )
        return substrate.add_batch_dim(output, dim % rank, self.level)


def check_pair(name: str, level: int, result: Any) -> None:
    """Raise RuleError unless a vmap rule returned ``(output, out_dims)``."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuleError(
            f"{name}.vmap (level {level}) must return the pair (output, out_dims), got "
            f"{describe(result)}."
        )
