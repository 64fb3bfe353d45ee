"""``vmap``: a function of one sample as a function of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, broadcast_prefix, flatten, is_atom, leaves
from fxforms.errors import (
    UNBATCHED,
    ArgumentError,
    FxformsError,
    MutationError,
    OutputError,
    describe,
    name_of,
    translate,
)
from fxforms.transforms._arguments import check_alive
from fxforms.transforms._batch import Batch, read_batch
from fxforms.transforms._wrapper import transformed

RANDOMNESS = ("error", "same", "different")


def read_out_dims(
    func: Callable[..., Any], out_dims: Any, output: Any, spec: PyTreeSpec
) -> list[Any]:
    """One out_dim for each leaf of ``output``."""
    if isinstance(output, torch.Tensor) and isinstance(out_dims, tuple) and len(out_dims) == 1:
        return list(out_dims)
    return broadcast_prefix(out_dims, spec, f"vmap({name_of(func)})", "out_dims")


def check_randomness(func: Callable[..., Any], randomness: str) -> None:
    """Raise ArgumentError unless ``randomness`` is a known mode."""
    if randomness not in RANDOMNESS:
        raise ArgumentError(
            f"vmap({name_of(func)}, randomness={randomness!r}): randomness must be one of "
            f"{', '.join(map(repr, RANDOMNESS))}."
        )


def check_out_dims(func: Callable[..., Any], out_dims: Any) -> None:
    """Raise ArgumentError unless ``out_dims`` is made of ints and None."""
    if is_atom(out_dims) and (out_dims is None or isinstance(out_dims, int)):
        return
    if not all(dim is None or isinstance(dim, int) for dim in leaves(out_dims)):
        raise ArgumentError(
            f"vmap({name_of(func)}, out_dims={out_dims!r}): out_dims must be an int, None, or a "
            f"pytree of those like the output."
        )


def unbatch(
    func: Callable[..., Any], output: Any, out_dim: int | None, level: int, size: int, path: str
) -> Any:
    """One output of the mapped function, with its batch at ``out_dim``."""
    if isinstance(output, torch.Tensor):
        output = substrate.unwrap_if_dead(output)
    if out_dim is None:
        if isinstance(output, torch.Tensor) and substrate.level_of(output) == level:
            raise OutputError(
                f"vmap({name_of(func)}): {path} differs between samples and cannot have out_dim "
                f"None. Say with an int where its batch dim goes."
            )
        return output
    if not isinstance(output, torch.Tensor):
        raise OutputError(
            f"vmap({name_of(func)}): {path} is {describe(output)}, but a mapped function returns "
            f"tensors. Give that output out_dim None to pass it through."
        )
    rank = output.dim() + 1
    if not -rank <= out_dim < rank:
        raise ArgumentError(
            f"vmap({name_of(func)}): {path} has {rank} dims with its batch, so out_dim must lie in "
            f"[{-rank}, {rank}), got {out_dim}."
        )
    return substrate.take_batch_dim(output, level, size, out_dim % rank)


def translate_unbatched(error: RuntimeError, func: Callable[..., Any]) -> None:
    """Raise MutationError where an in-place op met a batch that its destination lacks.

    torch's message for it is that of any broadcast; only under vmap does it mean this.
    """
    if "doesn't match the broadcast shape" in str(error) and not isinstance(error, FxformsError):
        raise MutationError(f"vmap({name_of(func)}): {error}. {UNBATCHED}") from error


def run_mapped(
    func: Callable[..., Any],
    batch: Batch,
    out_dims: Any,
    randomness: str,
    kwargs: dict[str, Any],
) -> Any:
    """``func`` on one batch."""
    mapped: list[Any] = []
    try:
        level = substrate.enter_vmap(batch.size, randomness)  # vmap_level, without its object
        try:
            add = substrate.add_batch_dim
            mapped = [x if d is None else add(x, d, level) for x, d in zip(batch.flat, batch.dims)]
            args = mapped if batch.spec is None else batch.spec.unflatten(mapped)
            output = func(*args, **kwargs)
            if type(output) is torch.Tensor and out_dims == 0:
                output = substrate.unwrap_if_dead(output)
                return substrate.remove_batch_dim(output, level, batch.size, 0)
            return unbatch_all(func, output, out_dims, level, batch.size)
        finally:
            substrate.exit_vmap()
            for tensor, dim in zip(mapped, batch.dims):
                if dim is not None:
                    substrate.set_batched_level(tensor, substrate.ESCAPED_LEVEL)
    except RuntimeError as error:
        translate_unbatched(error, func)
        for index, leaf in enumerate(batch.flat):
            check_alive(leaf, f"argument {index}", "vmap", func)
        translate(error, f"vmap({name_of(func)})")
        raise


def unbatch_all(func: Callable[..., Any], output: Any, out_dims: Any, level: int, size: int) -> Any:
    """The outputs of the mapped function, each with its batch where ``out_dims`` says."""
    flat, spec = flatten(output)
    dims = read_out_dims(func, out_dims, output, spec)
    names = ["the output"] if spec.is_leaf() else [f"output {i}" for i in range(len(flat))]
    return spec.unflatten(
        [unbatch(func, leaf, dim, level, size, name) for leaf, dim, name in zip(flat, dims, names)]
    )


def run_chunks(
    func: Callable[..., Any],
    batch: Batch,
    out_dims: Any,
    randomness: str,
    chunk_size: int,
    kwargs: dict[str, Any],
) -> Any:
    """``func`` on pieces of the batch in turn, the outputs joined."""
    state = torch.get_rng_state() if randomness == "same" else None
    flats, output, spec = [], None, None
    for start in range(0, batch.size, chunk_size):
        size = min(chunk_size, batch.size - start)
        flat = [
            x if d is None else x.narrow(d, start, size) for x, d in zip(batch.flat, batch.dims)
        ]
        if state is not None:
            torch.set_rng_state(state)
        piece = batch._replace(flat=flat, size=size)
        output = run_mapped(func, piece, out_dims, randomness, kwargs)
        leaves_, spec = flatten(output)
        flats.append(leaves_)
    assert spec is not None
    dims = read_out_dims(func, out_dims, output, spec)
    joined = [
        pieces[0] if dim is None else torch.cat(pieces, dim)
        for pieces, dim in zip(zip(*flats), dims)
    ]
    return spec.unflatten(joined)


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The function that applies ``func`` to every sample of a batch at once.

    Args:
        func: takes and returns pytrees of tensors without the batch dim.
        in_dims: the dim of each positional argument that holds the batch: an int for all, or a
            tuple with an entry for each argument, an int, None (shared by all samples) or a pytree
            of those. Negative dims count from the end.
        out_dims: where the batch dim goes in each output: an int, None (an output that is the same
            for all samples, passed through), or a pytree of those like the output.
        randomness: random operations in ``func`` are an ``"error"``, draw the ``"same"`` number for
            every sample, or a ``"different"`` one.
        chunk_size: process at most this many samples at a time, to bound memory.

    Returns:
        A function of the same arguments with a batch dim. Keyword arguments are passed on whole.

    Raises:
        ArgumentError: an ``in_dims`` entry is out of range or names something that is not a
            tensor, or the batch sizes differ.
        StructureError: ``in_dims`` or ``out_dims`` does not match what it describes.
        OutputError: an output is not a tensor, or has ``out_dim`` None and differs between samples.

    Example:
        >>> import torch, fxforms
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> fxforms.vmap(torch.dot)(x, x)
        tensor([ 5., 25.])
        >>> fxforms.vmap(torch.dot, in_dims=(1, None))(x, x[0])
        tensor([ 7., 10.])
    """
    check_randomness(func, randomness)
    if chunk_size is not None and chunk_size <= 0:
        raise ArgumentError(
            f"vmap({name_of(func)}, chunk_size={chunk_size}): chunk_size must be positive."
        )
    check_out_dims(func, out_dims)

    def run(*args: Any, **kwargs: Any) -> Any:
        batch = read_batch(func, in_dims, args)
        if chunk_size is None or chunk_size >= batch.size:
            return run_mapped(func, batch, out_dims, randomness, kwargs)
        return run_chunks(func, batch, out_dims, randomness, chunk_size, kwargs)

    return transformed(func, run)
