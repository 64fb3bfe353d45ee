"""The arguments of a mapped call: which tensors hold the batch, where, and how large it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fxforms._tree import PyTreeSpec, broadcast_prefix, flatten, is_atom, leaf_paths
from fxforms.errors import ArgumentError, describe, name_of
from fxforms.transforms._arguments import check_alive


class Batch(NamedTuple):
    """The arguments of one mapped call: flat, each with its batch dim."""

    flat: list[Any]
    dims: list[int | None]
    spec: PyTreeSpec | None  # None: each argument is a leaf
    size: int


def read_batch(func: Callable[..., Any], in_dims: Any, args: tuple[Any, ...]) -> Batch:
    """Flatten ``args`` beside ``in_dims`` and find the batch size."""
    if in_dims == 0 and len(args) == 1 and type(args[0]) is torch.Tensor and args[0].dim():
        return Batch([args[0]], [0], None, args[0].shape[0])  # the common call, without the checks
    if not isinstance(in_dims, (int, tuple)):
        raise ArgumentError(
            f"vmap({name_of(func)}, in_dims={in_dims!r}): in_dims must be an int or a tuple with "
            f"one entry for each positional argument, got {type(in_dims).__name__}."
        )
    if not args:
        raise ArgumentError(
            f"vmap({name_of(func)}): there is nothing to map over: no positional arguments. "
            f"Keyword arguments are passed on whole."
        )
    spec: PyTreeSpec | None
    dims: list[int | None]
    if isinstance(in_dims, int) and all(map(is_atom, args)):
        flat, spec, dims = list(args), None, [in_dims] * len(args)
    else:
        flat, spec = flatten(args)
        dims = broadcast_prefix(in_dims, spec, f"vmap({name_of(func)})", "in_dims")
    sizes = []
    for index, (leaf, dim) in enumerate(zip(flat, dims)):
        if dim is None:
            continue
        if not is_mappable(leaf, dim):
            reject_leaf(func, in_dims, args, index, leaf, dim)
        if dim < 0:
            dims[index] = dim % leaf.dim()
        sizes.append(leaf.shape[dim])
    if not sizes or sizes.count(sizes[0]) != len(sizes):
        reject_sizes(func, in_dims, args, flat, dims)
    return Batch(flat, dims, spec, sizes[0])


def is_mappable(leaf: Any, dim: Any) -> bool:
    """True if ``dim`` is a dim of the tensor ``leaf``."""
    if not (isinstance(leaf, torch.Tensor) and isinstance(dim, int)):
        return False
    return -leaf.dim() <= dim < leaf.dim()


def reject_leaf(
    func: Callable[..., Any], in_dims: Any, args: Any, index: int, leaf: Any, dim: Any
) -> None:
    """Raise for one argument that cannot be mapped along ``dim``."""
    path = leaf_paths(args, "args")[index]
    where = f"vmap({name_of(func)}, in_dims={in_dims!r}): {path}"
    if not isinstance(leaf, torch.Tensor):
        raise ArgumentError(
            f"{where} is {describe(leaf)} and cannot be mapped over. Give it in_dim None, or make "
            f"it a tensor."
        )
    check_alive(leaf, path, "vmap", func)
    if not isinstance(dim, int):
        raise ArgumentError(f"{where} has in_dim {dim!r}; it must be an int or None.")
    raise ArgumentError(
        f"{where} is {describe(leaf)}, so its in_dim must lie in [{-leaf.dim()}, {leaf.dim()}), "
        f"got {dim}."
        + (" A tensor without dims has no batch; give it in_dim None." if leaf.dim() == 0 else "")
    )


def reject_sizes(
    func: Callable[..., Any], in_dims: Any, args: Any, flat: list[Any], dims: list[int | None]
) -> None:
    """Raise for arguments without one common batch size."""
    rows = [
        f"{path} has size {leaf.shape[dim]} along dim {dim}"
        for path, leaf, dim in zip(leaf_paths(args, "args"), flat, dims)
        if dim is not None
    ]
    where = f"vmap({name_of(func)}, in_dims={in_dims!r})"
    if not rows:
        raise ArgumentError(
            f"{where}: no argument is mapped. Give at least one tensor an in_dim that is an int."
        )
    raise ArgumentError(
        f"{where}: the mapped dims must have one size: {'; '.join(rows)}. Give an argument that is "
        f"shared by all samples in_dim None."
    )
