"""Saving a compiled function to a file, and loading it in another process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch

from fxforms._tree import leaves, map_leaves
from fxforms.errors import ArgumentError, TraceError, name_of
from fxforms.staging.compiler import backends
from fxforms.staging.entry import Entry
from fxforms.staging.jit import as_jitted
from fxforms.staging.saved import Saved, signature_text


class Exported(torch.nn.Module):
    """A traced function of flat tensors as a module, with what it captured as buffers."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        traced = entry.program.traced
        self._graph, self._outputs = traced.graph, entry.outputs
        self._count = len(traced.captured)
        for index, tensor in enumerate(traced.captured):
            self.register_buffer(f"captured_{index}", tensor.detach())

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The output, with None for what in it is no tensor."""
        captured = [getattr(self, f"captured_{i}") for i in range(self._count)]
        output = self._outputs.restore(self._graph(*tensors, *captured))
        return map_leaves(lambda x: x if isinstance(x, torch.Tensor) else None, output)


def save(func: Callable[..., Any], path: str | os.PathLike[str], *args: Any) -> None:
    """Compile ``func`` for arguments like these and write it to ``path``.

    The file is a package of torch's ahead-of-time Inductor, so it runs without Python source and
    without tracing, also from C++. It is bound to the dtypes, shapes and devices of ``args``, and
    to the values of what in them is no tensor. Captured tensors go in as they are now. It has no
    derivative: save ``fxforms.grad(f)`` to have that of ``f``.

    Args:
        func: a function or a jitted one.
        path: where to write; the name ends in ``.pt2``.
        *args: example arguments.

    Raises:
        ArgumentError: an argument or output is no tensor, and nothing that a file can tell.
        TraceError: ``func`` cannot be traced, changes tensors in place, or calls Python.

    Example:
        >>> import tempfile, torch, fxforms
        >>> path = tempfile.mkdtemp() + "/slope.pt2"
        >>> fxforms.save(fxforms.grad(torch.sin), path, torch.tensor(0.0))  # doctest: +SKIP
        >>> fxforms.load(path)(torch.tensor(0.0))  # doctest: +SKIP
        tensor(1.)
    """
    jitted, name = as_jitted(func), name_of(func)
    entry = jitted.entry(args, {})
    traced = entry.program.traced
    if traced.written or traced.bodies:
        what = "changes tensors in place" if traced.written else "calls Python from its graph"
        raise TraceError(
            f"save of {name}: it {what}, which a file cannot hold. Return new tensors "
            f"instead, or save the part that only computes."
        )
    text = signature_text(name, args, entry.outputs.leaves)
    tensors = tuple([x.detach() for x in leaves(args) if isinstance(x, torch.Tensor)])
    with warnings.catch_warnings():  # torch's own use of what torch deprecates
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        backends().write_package(Exported(entry), tensors, os.fspath(path), text)


def load(path: str | os.PathLike[str]) -> Callable[..., Any]:
    """The function that :func:`save` wrote to ``path``.

    Args:
        path: a file made by :func:`save`, on a machine of the same kind.

    Returns:
        A function of arguments like those that it was saved for. Each call is checked against what
        the file says of them, before the compiled code reads anything; a tensor with other strides
        is copied. It raises ArgumentError for other arguments, for one that requires grad while
        grad mode is on, inside a transform, and inside ``jit``.

    Raises:
        ArgumentError: there is no such file, or :func:`save` did not write it.

    Example:
        >>> import fxforms
        >>> slope = fxforms.load("slope.pt2")  # doctest: +SKIP
    """
    where = os.fspath(path)
    if not os.path.exists(where):
        raise ArgumentError(f"load: there is no file {where!r}.")
    run, text = backends().read_package(where)
    if text is None:
        raise ArgumentError(
            f"load: {where!r} was not written by fxforms.save, so nothing tells which arguments "
            f"its code may read. Write it anew, or use torch._inductor.aoti_load_package."
        )
    return Saved(run, text)
