"""Saving a compiled function to a file, and loading it in another process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from fxforms._tree import leaves
from fxforms.errors import ArgumentError, TraceError, name_of
from fxforms.staging.compiler import backends
from fxforms.staging.entry import Entry
from fxforms.staging.jit import as_jitted


class Exported(torch.nn.Module):
    """A traced function as a module, with what it captured as buffers."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        traced = entry.program.traced
        self._graph, self._outputs = traced.graph, entry.outputs
        self._count = len(traced.captured)
        for index, tensor in enumerate(traced.captured):
            self.register_buffer(f"captured_{index}", tensor.detach())

    def forward(self, *args: Any) -> Any:
        """The outputs for arguments of the structure that was traced."""
        tensors = [x for x in leaves(args) if isinstance(x, torch.Tensor)]
        captured = [getattr(self, f"captured_{i}") for i in range(self._count)]
        return self._outputs.restore(self._graph(*tensors, *captured))


def save(func: Callable[..., Any], path: str | os.PathLike[str], *args: Any) -> None:
    """Compile ``func`` for arguments like these and write it to ``path``.

    The file is a package of torch's ahead-of-time Inductor, so it runs without Python source and
    without tracing, also from C++. Captured tensors go in as they are now; arguments that are no
    tensors are fixed.

    Args:
        func: a function or a jitted one.
        path: where to write; the name ends in ``.pt2``.
        *args: example arguments.

    Raises:
        TraceError: ``func`` cannot be traced, changes tensors in place, or calls Python.

    Example:
        >>> import tempfile, torch, fxforms
        >>> path = tempfile.mkdtemp() + "/slope.pt2"
        >>> fxforms.save(fxforms.grad(torch.sin), path, torch.tensor(0.0))  # doctest: +SKIP
        >>> fxforms.load(path)(torch.tensor(0.0))  # doctest: +SKIP
        tensor(1.)
    """
    jitted = as_jitted(func)
    entry = jitted.entry(args, {})
    traced = entry.program.traced
    if traced.written or traced.bodies:
        what = "changes tensors in place" if traced.written else "calls Python from its graph"
        raise TraceError(
            f"save of {name_of(func)}: it {what}, which a file cannot hold. Return new tensors "
            f"instead, or save the part that only computes."
        )
    backends().write_package(Exported(entry), args, os.fspath(path))


def load(path: str | os.PathLike[str]) -> Callable[..., Any]:
    """The function that :func:`save` wrote to ``path``.

    Args:
        path: a file made by :func:`save`, on a machine of the same kind.

    Returns:
        A function of arguments like those that it was saved for.

    Raises:
        ArgumentError: there is no such file.

    Example:
        >>> import fxforms
        >>> slope = fxforms.load("slope.pt2")  # doctest: +SKIP
    """
    if not os.path.exists(path):
        raise ArgumentError(f"load: there is no file {os.fspath(path)!r}.")
    loaded: Callable[..., Any] = backends().read_package(os.fspath(path))
    return loaded
