"""``argnums``, and the checks and wrapping of differentiated arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten, leaf_paths, map_tensors
from fxforms.errors import ArgumentError, EscapedTensorError, describe, name_of

Argnums = int | tuple[int, ...]


def select(argnums: Argnums, count: int, api: str, func: Callable[..., Any]) -> tuple[int, ...]:
    """``argnums`` as non-negative positions among ``count`` arguments."""
    given = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(given, tuple) or not all(isinstance(i, int) for i in given) or not given:
        raise ArgumentError(
            f"{api}({name_of(func)}, argnums={argnums!r}): argnums must be an int or a non-empty "
            f"tuple of ints."
        )
    for i in given:
        if not -count <= i < count:
            raise ArgumentError(
                f"{api}({name_of(func)}, argnums={argnums!r}): there are {count} positional "
                f"arguments, so argnums must lie in [{-count}, {count}). Arguments passed by "
                f"keyword are not differentiated; pass them by position."
            )
    positions = tuple([i % count for i in given])
    if len(set(positions)) != len(positions):
        raise ArgumentError(
            f"{api}({name_of(func)}, argnums={argnums!r}): an argument is named twice."
        )
    return positions


def is_differentiable(tensor: torch.Tensor) -> bool:
    """True if ``tensor`` has a floating or complex dtype."""
    return tensor.is_floating_point() or tensor.is_complex()


def check_inputs(flat: list[Any], tree: Any, root: str, api: str, func: Callable[..., Any]) -> None:
    """Raise unless every leaf of an argument to differentiate is a floating or complex tensor."""
    for index, leaf in enumerate(flat):
        if isinstance(leaf, torch.Tensor) and is_differentiable(leaf):
            if substrate.is_batched(leaf):
                check_alive(leaf, root, api, func)
            continue
        path = leaf_paths(tree, root)[index]
        raise ArgumentError(
            f"{api}({name_of(func)}): cannot differentiate with respect to {path}, which is "
            f"{describe(leaf)}. Pass a floating or complex tensor there, or leave it out of the "
            f"differentiated arguments (argnums)."
        )


def check_alive(value: Any, root: str, api: str, func: Callable[..., Any]) -> None:
    """Raise EscapedTensorError if ``value`` is a tensor of a vmap that has ended."""
    if isinstance(value, torch.Tensor) and substrate.level_of(value) > substrate.level_depth():
        raise EscapedTensorError(
            f"{api}({name_of(func)}): {root} holds a tensor of a vmap that has ended. Return it "
            f"from the mapped function instead of storing it."
        )


class Leaves:
    """The differentiated arguments of one call: their tensors as leaves of a level's graph."""

    __slots__ = ("argnums", "args", "specs", "tensors")

    def __init__(
        self,
        args: tuple[Any, ...],
        argnums: Argnums | None,
        level: int,
        api: str,
        func: Callable[..., Any],
    ) -> None:
        """Wrap all ``args`` at ``level``; those of ``argnums`` (None: all) require grad."""
        self.argnums = argnums
        self.tensors: list[torch.Tensor] = []
        self.specs: list[PyTreeSpec | None] = []
        positions = range(len(args)) if argnums is None else select(argnums, len(args), api, func)
        added = {i: self._add(args[i], i, level, api, func) for i in positions}
        self.args = tuple(
            [added[i] if i in added else wrap_all(x, level) for i, x in enumerate(args)]
        )

    def _add(self, arg: Any, index: int, level: int, api: str, func: Callable[..., Any]) -> Any:
        """``arg`` with each tensor in it a leaf of the graph."""
        is_tensor = isinstance(arg, torch.Tensor)
        if is_tensor and arg.is_floating_point() and not substrate.is_batched(arg):
            leaf = substrate.make_leaf(arg, level)
            self.tensors.append(leaf)
            self.specs.append(None)
            return leaf
        flat, spec = flatten(arg)
        check_inputs(flat, arg, f"args[{index}]", api, func)
        leaves = [substrate.make_leaf(x, level) for x in flat]
        self.tensors.extend(leaves)
        self.specs.append(spec)
        return spec.unflatten(leaves)

    def rebuild(self, flat: list[Any]) -> Any:
        """``flat``, one value a leaf, in the structure that ``argnums`` asked for."""
        built, start = [], 0
        for spec in self.specs:
            count = 1 if spec is None else spec.num_leaves
            part = flat[start : start + count]
            built.append(part[0] if spec is None else spec.unflatten(part))
            start += count
        return built[0] if isinstance(self.argnums, int) else tuple(built)


def wrap_all(tree: Any, level: int) -> Any:
    """``tree`` with every tensor in it wrapped at grad or jvp ``level``."""
    if isinstance(tree, torch.Tensor):
        return substrate.wrap_for_grad(tree, level)
    return map_tensors(lambda x: substrate.wrap_for_grad(x, level), tree)


def unwrap_all(tree: Any, level: int) -> Any:
    """``tree`` with every tensor in it taken off grad or jvp ``level``."""
    if isinstance(tree, torch.Tensor):
        return substrate.unwrap_for_grad(tree, level)
    return map_tensors(lambda x: substrate.unwrap_for_grad(x, level), tree)


def split_aux(result: Any, has_aux: bool, api: str, func: Callable[..., Any]) -> tuple[Any, Any]:
    """``(output, aux)`` of what ``func`` returned."""
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError(
            f"{api}({name_of(func)}, has_aux=True): the function must return the pair "
            f"(output, aux), got {describe(result)}."
        )
    return result[0], result[1]
