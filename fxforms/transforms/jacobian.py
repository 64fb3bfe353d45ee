"""``jacrev``, ``jacfwd`` and ``hessian``: whole Jacobians, by mapping over a basis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten, map_tensors
from fxforms.errors import ArgumentError, name_of
from fxforms.interpreters import below_all_levels, vmap_level
from fxforms.transforms._arguments import Argnums, check_inputs, select
from fxforms.transforms._wrapper import transformed
from fxforms.transforms.jvp import push
from fxforms.transforms.vjp import Pullback, pull
from fxforms.transforms.vmap import check_randomness


def check_real(
    tensors: Sequence[torch.Tensor], what: str, api: str, func: Callable[..., Any]
) -> None:
    """Raise ArgumentError if a tensor is complex: one Jacobian cannot describe its derivative."""
    for tensor in tensors:
        if tensor.is_complex():
            raise ArgumentError(
                f"{api}({name_of(func)}): {what} must be real, got {tensor.dtype}. Differentiate "
                f"torch.view_as_real of it, or use vjp or jvp."
            )


def with_keywords(func: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """``func`` with arguments that are not differentiated."""
    return functools.wraps(func, updated=())(functools.partial(func, **kwargs)) if kwargs else func


def basis(tensors: Sequence[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
    """Rows ``start`` to ``stop`` of the standard basis of all ``tensors``, split by tensor."""
    with below_all_levels():
        parts, offset = [], 0
        for tensor in tensors:
            size = tensor.numel()
            low, high = max(start, offset), min(stop, offset + size)
            if low < high:
                part = torch.eye(high - low, high - low, dtype=tensor.dtype, device=tensor.device)
                around = (low - offset, offset + size - high, low - start, stop - high)
                part = torch.nn.functional.pad(part, around) if any(around) else part
            else:
                part = torch.zeros(stop - start, size, dtype=tensor.dtype, device=tensor.device)
            parts.append(part.view(stop - start, *tensor.shape))
            offset += size
    return parts


def chunks(total: int, chunk_size: int | None) -> Iterator[tuple[int, int]]:
    """The bounds of pieces of at most ``chunk_size`` rows; one piece if that is None."""
    if chunk_size is None:  # no loop: the total may be a symbol
        if total:
            yield 0, total
        return
    for start in range(0, total, chunk_size):
        yield start, min(start + chunk_size, total)


def pull_rows(pullback: Pullback, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients at each row of cotangents.

    A single row goes without a vmap level: a batch of one would turn each product with a matrix
    into a batched one.
    """
    create_graph = torch.is_grad_enabled()
    size = rows[0].shape[0]
    if size == 1:
        gradients = pullback.flat([row[0] for row in rows], True, create_graph)
        return [g.unsqueeze(0) for g in gradients]
    with vmap_level(size, "error") as level:
        batched = [substrate.add_batch_dim(row, 0, level) for row in rows]
        gradients = pullback.flat(batched, True, create_graph)
        return [substrate.take_batch_dim(g, level, size, 0) for g in gradients]


def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The function that computes the Jacobian of ``func`` by reverse mode.

    One pullback is mapped over the standard basis of the outputs, so the cost grows with the
    number of output elements.

    Args:
        func: returns a pytree of real floating tensors, or with ``has_aux`` the pair
            ``(output, aux)``.
        argnums: position, or tuple of positions, of the arguments to differentiate with respect to.
        has_aux: ``func`` returns auxiliary data beside its output.
        chunk_size: rows of the Jacobian computed at a time, to bound memory. With 1, no vmap.

    Returns:
        A function of the same arguments; those given by keyword are not differentiated. It returns
        the Jacobian: the structure of the output, in each place the structure of the chosen
        argument, in each place a tensor of shape ``output.shape + input.shape``. With ``has_aux``,
        the pair ``(jacobian, aux)``.

    Raises:
        ArgumentError: ``argnums`` or ``chunk_size`` is out of range, or an input is not a real
            floating tensor.
        OutputError: an output is not a floating tensor.

    Example:
        >>> import torch, fxforms
        >>> fxforms.jacrev(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ArgumentError(
            f"jacrev({name_of(func)}, chunk_size={chunk_size}): chunk_size must be positive."
        )

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = with_keywords(func, kwargs)
        output, pullback, aux = pull(bound, args, argnums, has_aux, "jacrev")
        jacobian = pull_jacobian(func, output, pullback, chunk_size)
        return (jacobian, aux) if has_aux else jacobian

    return transformed(func, run)


def pull_jacobian(
    func: Callable[..., Any], output: Any, pullback: Pullback, chunk_size: int | None
) -> Any:
    """The Jacobian, in the structure of ``output``, from the pullback there."""
    outputs, spec = flatten(output)
    inputs = pullback.leaves.tensors
    check_real(inputs, "the inputs", "jacrev", func)
    check_real(outputs, "the outputs", "jacrev", func)
    sizes = [out.numel() for out in outputs]
    pieces = [
        pull_rows(pullback, basis(outputs, start, stop))
        for start, stop in chunks(sum(sizes), chunk_size)
    ]
    blocks = split_rows(pieces, outputs, sizes, inputs)
    return spec.unflatten([pullback.leaves.rebuild(row) for row in blocks])


def split_rows(
    pieces: list[list[torch.Tensor]],
    outputs: list[torch.Tensor],
    sizes: list[int],
    inputs: list[torch.Tensor],
) -> list[list[torch.Tensor]]:
    """For each output, for each input, the block of the Jacobian."""
    columns = []
    for index, tensor in enumerate(inputs):
        rows = [piece[index] for piece in pieces] or [
            torch.zeros(0, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
        ]
        whole = rows[0] if len(rows) == 1 else torch.cat(rows)
        columns.append(torch.split(whole, sizes))
    return [
        [column[i].reshape(out.shape + x.shape) for column, x in zip(columns, inputs)]
        for i, out in enumerate(outputs)
    ]


def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """The function that computes the Jacobian of ``func`` by forward mode.

    One jvp is mapped over the standard basis of the inputs, so the cost grows with the number of
    input elements.

    Args:
        func: returns a pytree of real floating tensors, or with ``has_aux`` the pair
            ``(output, aux)``.
        argnums: position, or tuple of positions, of the arguments to differentiate with respect to.
        has_aux: ``func`` returns auxiliary data beside its output.
        randomness: how random operations in ``func`` behave; see :func:`vmap`.

    Returns:
        As :func:`jacrev`.

    Raises:
        ArgumentError: ``argnums`` is out of range, or an input is not a real floating tensor.
        OutputError: an output is not a tensor.

    Example:
        >>> import torch, fxforms
        >>> fxforms.jacfwd(lambda x: x.sum() * x)(torch.tensor([1.0, 2.0]))
        tensor([[4., 1.],
                [2., 5.]])
    """
    check_randomness(func, randomness)

    def run(*args: Any, **kwargs: Any) -> Any:
        positions = select(argnums, len(args), "jacfwd", func)
        chosen = tuple([args[i] for i in positions])
        inputs, in_spec = flatten(chosen)
        check_inputs(inputs, chosen, "args", "jacfwd", func)
        check_real(inputs, "the inputs", "jacfwd", func)
        outputs, columns, spec, aux = push_columns(
            with_keywords(func, kwargs), args, positions, inputs, in_spec, has_aux, randomness
        )
        check_real(outputs, "the outputs", "jacfwd", func)
        built = []
        for out, column in zip(outputs, columns):
            blocks = torch.split(column, [x.numel() for x in inputs], -1)
            tree = in_spec.unflatten(
                [block.reshape(out.shape + x.shape) for block, x in zip(blocks, inputs)]
            )
            built.append(tree[0] if isinstance(argnums, int) else tree)
        jacobian = spec.unflatten(built)
        return (jacobian, aux) if has_aux else jacobian

    return transformed(func, run)


def push_columns(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    positions: tuple[int, ...],
    inputs: list[torch.Tensor],
    in_spec: PyTreeSpec,
    has_aux: bool,
    randomness: str,
) -> tuple[list[torch.Tensor], list[torch.Tensor], PyTreeSpec, Any]:
    """Outputs, and for each the tangents along every basis vector of the inputs, stacked last."""
    size = sum(x.numel() for x in inputs)
    # A batch is not empty: without input elements one zero tangent gives the shapes.
    width = max(size, 1)
    with vmap_level(width, randomness) as level:
        rows = [substrate.add_batch_dim(row, 0, level) for row in basis(inputs, 0, width)]
        tangents = in_spec.unflatten(rows)
        output, tangent, aux = push(func, args, tangents, positions, False, has_aux, "jacfwd")
        outputs, spec = flatten(output)
        columns = [
            substrate.take_batch_dim(t, level, width, t.dim())[..., :size]
            for t in flatten(tangent)[0]
        ]
        outputs = [substrate.take_batch_dim(x, level, width, 0)[0] for x in outputs]
        if has_aux:
            aux = map_tensors(lambda x: substrate.take_batch_dim(x, level, width, 0)[0], aux)
    return outputs, columns, spec, aux


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The function that computes the Hessian of ``func``.

    Reverse over reverse where the output is a single number, which is the cheapest there. Forward
    over reverse otherwise, where it saves a factor of the output size; ``func`` then runs twice,
    the first time to learn that size.

    Args:
        func: returns a pytree of real floating tensors, most often one scalar.
        argnums: position, or tuple of positions, of the arguments to differentiate with respect to.

    Returns:
        A function of the same arguments; for one output and one input the Hessian has shape
        ``output.shape + input.shape + input.shape``. Structures nest as in :func:`jacrev`.

    Raises:
        ArgumentError, OutputError: as :func:`jacrev`.

    Example:
        >>> import torch, fxforms
        >>> fxforms.hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
    """
    gradient = jacrev(func, argnums)
    forward = jacfwd(gradient, argnums)

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = with_keywords(gradient, kwargs)
        first, pullback, _ = pull(bound, args, argnums, False, "hessian")
        rows = sum(x.numel() for x in flatten(first)[0])
        if rows > sum(x.numel() for x in pullback.leaves.tensors):
            return forward(*args, **kwargs)
        return pull_jacobian(func, first, pullback, None)

    return transformed(func, run)
