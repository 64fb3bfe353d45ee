"""``sharded_vmap``: a batch split over workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from fxforms._tree import flatten
from fxforms.distributed.current import current_agent
from fxforms.distributed.parts import Part, divide
from fxforms.distributed.remote_call import RemoteCall
from fxforms.distributed.remote_functions import known_name
from fxforms.distributed.requests import UNSET_RPC_TIMEOUT, WorkerInfo
from fxforms.distributed.transformed import join, split
from fxforms.errors import ArgumentError, describe, name_of
from fxforms.transforms._batch import Batch, read_batch
from fxforms.transforms.vmap import check_out_dims, check_randomness, read_out_dims

Workers = Sequence[str | int | WorkerInfo] | DeviceMesh


def sharded_vmap(
    f: Callable[..., Any],
    workers: Workers,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> Callable[..., Any]:
    """``vmap(f)`` with the batch split over workers, which run their parts at once.

    It composes with every transform, as `remote_function` does. The parts are as even as they can
    be, in the order of ``workers``; a worker for which no sample is left is not called.

    Args:
        f: a registered function of one sample, or a built-in operator of torch.
        workers: names, ranks or `WorkerInfo`, at least one; or a ``DeviceMesh``, whose ranks are
            those of the workers.
        in_dims, out_dims, randomness: as of `fxforms.vmap`. What has in_dim None goes to every
            worker whole. An output that is a tensor has an int as out_dim. With ``"different"``
            randomness each worker draws from its own generator; seed those apart.
        timeout: seconds that a worker may take; the world's ``rpc_timeout`` unless given.

    Returns:
        A function of the same arguments with a batch dim.

    Raises:
        ArgumentError: ``f`` is not registered, there is no worker, or the arguments do not fit, as
            of `fxforms.vmap`; ``randomness="same"``, which workers cannot share.

    Example:
        >>> import torch, fxforms
        >>> from fxforms import distributed
        >>> distributed.init_rpc("alone", rank=0, world_size=1, agent="local")
        >>> dot = distributed.sharded_vmap(torch.dot, workers=["alone", "alone"])
        >>> x = torch.arange(6.0).reshape(3, 2)
        >>> dot(x, x)
        tensor([ 1., 13., 41.])
        >>> fxforms.grad(lambda x: dot(x, x).sum())(x)
        tensor([[ 0.,  2.],
                [ 4.,  6.],
                [ 8., 10.]])
        >>> distributed.shutdown()
    """
    name = known_name(f, "sharded_vmap")
    check_randomness(f, randomness)
    check_out_dims(f, out_dims)
    if randomness == "same":
        raise ArgumentError(
            f'sharded_vmap({name_of(f)}, randomness="same"): workers draw their own numbers. Draw '
            "them before the call and pass them as an argument."
        )
    if isinstance(workers, str) or not isinstance(workers, (Sequence, DeviceMesh)):
        raise ArgumentError(
            f"sharded_vmap({name_of(f)}): workers is {describe(workers)}, expected a list of "
            "names, ranks or WorkerInfo, or a DeviceMesh."
        )
    ranks = workers.mesh.flatten().tolist() if isinstance(workers, DeviceMesh) else list(workers)
    if not ranks:
        raise ArgumentError(f"sharded_vmap({name_of(f)}): there are no workers.")

    def run(*args: Any, **kwargs: Any) -> Any:
        agent = current_agent()
        batch = read_batch(f, in_dims, args)
        pieces = _split(batch, len(ranks))
        parts: list[Part] = []
        operands: list[torch.Tensor] = []
        for rank, piece in zip(ranks, pieces):
            part, tensors = _part(agent.worker(rank), name, piece, kwargs, randomness, timeout)
            parts.append(part)
            operands += tensors
        call = RemoteCall(parts)
        outputs = divide(call.bind(*operands), call.counts)
        trees = [join(part.returned[0], xs) for part, xs in zip(parts, outputs)]
        return _gather(f, trees, out_dims)

    run.__name__ = run.__qualname__ = name_of(f)
    return run


def _split(batch: Batch, count: int) -> list[Batch]:
    """The samples in ``count`` pieces of even size, those without samples left out."""
    whole, rest = divmod(batch.size, count)
    sizes = [whole + (i < rest) for i in range(count)]
    pieces, start = [], 0
    for size in sizes if batch.size else [0]:
        if size or not batch.size:
            cut = [
                x if d is None else x.narrow(d, start, size) for x, d in zip(batch.flat, batch.dims)
            ]
            pieces.append(batch._replace(flat=cut, size=size))
        start += size
    return pieces


def _part(
    worker: WorkerInfo,
    name: str,
    piece: Batch,
    kwargs: dict[str, Any],
    randomness: str,
    timeout: float,
) -> tuple[Part, tuple[torch.Tensor, ...]]:
    """The call of one worker: ``name`` under vmap."""
    args = piece.flat if piece.spec is None else list(piece.spec.unflatten(piece.flat))
    arguments, tensors = split((args, kwargs))
    mapped = {id(x): dim for x, dim in zip(piece.flat, piece.dims)}
    in_dims = [mapped.get(id(x)) for x in tensors]
    part = Part(worker, name, arguments, len(tensors), timeout)
    return part.under(len(tensors), "vmap", in_dims, randomness, piece.size), tensors


def _gather(f: Callable[..., Any], trees: list[Any], out_dims: Any) -> Any:
    """One output of those of all workers, each of which has its batch at dim 0."""
    flats = [flatten(tree)[0] for tree in trees]
    spec = flatten(trees[0])[1]
    dims = read_out_dims(f, out_dims, trees[0], spec)
    return spec.unflatten([_joined(f, list(xs), dim) for xs, dim in zip(zip(*flats), dims)])


def _joined(f: Callable[..., Any], pieces: list[Any], dim: int | None) -> Any:
    """One output; what is no tensor is the same for all samples."""
    if not isinstance(pieces[0], torch.Tensor):
        return pieces[0]
    if dim is None:
        raise ArgumentError(
            f"sharded_vmap({name_of(f)}): an output that is {describe(pieces[0])} with its batch "
            "has out_dim None, but the workers do not know whether it is the same for all. Give it "
            "an int."
        )
    return torch.cat(pieces).movedim(0, dim)
