"""The one file that flattens: pytrees on optree's C++ core.

The registry is torch's (optree namespace ``"torch"``): named tuples, dataclasses and user types
registered with ``torch.utils._pytree`` and the ``torch.return_types``, whether registered before
or after fxforms is imported. As in torch, ``None`` is a leaf and a dict keeps its order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
import torch.utils._cxx_pytree  # mirrors most of torch's registry into optree
from optree import PyTreeSpec
from torch.utils._pytree import SUPPORTED_NODES, NodeDef
from torch.utils._pytree import register_dataclass as _register_dataclass

from fxforms.errors import StructureError

__all__ = ["PyTreeSpec"]

_ATOMS = frozenset({torch.Tensor, torch.nn.Parameter, int, float, complex, bool, str, type(None)})
_LEAF = optree.treespec_leaf(none_is_leaf=True, namespace="torch")
_mirrored: set[type] = set()
_seen = 0
_lock = threading.Lock()


def _mirror(cls: type, node: NodeDef) -> None:
    """Register ``cls`` with optree as torch's own registry has it, unless optree knows it."""
    if optree.is_structseq_class(cls) or optree.is_namedtuple_class(cls):
        return

    def unflatten(context: Any, children: Any) -> Any:
        return node.unflatten_fn(list(children), context)

    with contextlib.suppress(ValueError, TypeError):  # built in, or mirrored by torch itself
        optree.register_pytree_node(cls, node.flatten_fn, unflatten, namespace="torch")


def _sync() -> None:
    """Take over what was registered with torch's Python pytree since the last look.

    torch mirrors ``register_pytree_node`` into optree, but not ``register_dataclass`` and
    ``register_constant``.
    """
    global _seen
    with _lock:
        nodes = list(SUPPORTED_NODES.items())
        for cls, node in nodes:
            if cls not in _mirrored:
                _mirror(cls, node)
                _mirrored.add(cls)
        _seen = len(nodes)


def register_dataclass(cls: type) -> None:
    """Make the dataclass ``cls`` a pytree of its fields, unless it is a pytree already."""
    if cls not in SUPPORTED_NODES:
        _register_dataclass(cls)


def flatten(tree: Any) -> tuple[list[Any], PyTreeSpec]:
    """The leaves of ``tree`` and its structure."""
    if type(tree) in _ATOMS:
        return [tree], _LEAF
    if len(SUPPORTED_NODES) != _seen:
        _sync()
    return optree.tree_flatten(tree, none_is_leaf=True, namespace="torch")


def leaves(tree: Any) -> list[Any]:
    """The leaves of ``tree``."""
    return flatten(tree)[0]


def is_atom(value: object) -> bool:
    """True if ``value`` is surely a leaf, found without a call into optree."""
    return type(value) in _ATOMS


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to each leaf."""
    if is_atom(tree):
        return function(tree)
    flat, spec = flatten(tree)
    return spec.unflatten([function(leaf) for leaf in flat])


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to each tensor in it; other leaves stay."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if is_atom(tree):
        return tree
    flat, spec = flatten(tree)
    return spec.unflatten([function(x) if isinstance(x, torch.Tensor) else x for x in flat])


def take_tensors(tree: Any) -> tuple[list[torch.Tensor], Callable[[Sequence[Any]], Any]]:
    """The tensors in ``tree``, and the function that makes the tree with others in their places."""
    flat, spec = flatten(tree)
    places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
    tensors = [flat[i] for i in places]
    for place in places:
        flat[place] = None

    def put(values: Sequence[Any]) -> Any:
        filled = list(flat)
        for place, value in zip(places, values):
            filled[place] = value
        return spec.unflatten(filled)

    return tensors, put


def leaf_paths(tree: Any, root: str) -> list[str]:
    """The path of each leaf of ``tree`` as Python source, such as ``args[0]['w']``."""
    accessors = flatten(tree)[1].accessors()
    return [accessor.codify(root) for accessor in accessors]


def broadcast_prefix(prefix: Any, spec: PyTreeSpec, api: str, argument: str) -> list[Any]:
    """One leaf of ``prefix`` for each leaf of a tree of structure ``spec``.

    ``prefix`` is a leaf or a tree that agrees with the top of ``spec``, as ``in_dims`` is.

    Raises:
        StructureError: ``prefix`` is not a prefix of that structure.
    """
    try:
        return _broadcast(prefix, spec)
    except _Mismatch:
        raise StructureError(
            f"{api}: {argument}={prefix!r} does not match the structure it describes, "
            f"{show(spec)}. Give one entry for all of it, or a tree that agrees with its top."
        ) from None


class _Mismatch(Exception):
    """A prefix does not agree with a structure."""


def align(tree: Any, spec: PyTreeSpec) -> list[Any] | None:
    """The leaves of ``tree`` in the order of ``spec``, whatever order its keys have.

    None in the place of a subtree stands for all of it. Returns None if the structures differ.
    """
    try:
        return _broadcast(tree, spec, only_none=True)
    except _Mismatch:
        return None


def _broadcast(prefix: Any, spec: PyTreeSpec, only_none: bool = False) -> list[Any]:
    """The leaves of ``prefix`` repeated below ``spec``; children are paired by key.

    With ``only_none`` no other leaf than None is repeated.
    """
    if is_atom(prefix) or optree.tree_is_leaf(prefix, none_is_leaf=True, namespace="torch"):
        if only_none and prefix is not None and not spec.is_leaf():
            raise _Mismatch
        return [prefix] * spec.num_leaves
    if only_none and dataclasses.is_dataclass(prefix) and type(prefix) is spec.type:
        return _by_field(prefix, spec)
    children, _, entries, _ = optree.tree_flatten_one_level(
        prefix, none_is_leaf=True, namespace="torch"
    )
    given = dict(zip(entries, children))
    if type(prefix) is not spec.type or given.keys() != set(spec.entries()):
        raise _Mismatch
    flat: list[Any] = []
    for entry, child in zip(spec.entries(), spec.children()):
        flat.extend(_broadcast(given[entry], child, only_none))
    return flat


def _by_field(tree: Any, spec: PyTreeSpec) -> list[Any]:
    """The leaves of a dataclass in the order of ``spec``; torch leaves a field of None out."""
    places = spec.unflatten(list(range(spec.num_leaves)))
    flat: list[Any] = [None] * spec.num_leaves
    for field in dataclasses.fields(tree):
        indices, inner = flatten(getattr(places, field.name, None))
        values = _broadcast(getattr(tree, field.name), inner, only_none=True)
        for index, value in zip(indices, values):
            if isinstance(index, int):
                flat[index] = value
            elif value is not None:
                raise _Mismatch
    return flat


def show(spec: PyTreeSpec) -> str:
    """``spec`` as a message shows it: only the containers, ``*`` for a leaf."""
    text = str(spec)
    inner = text.removeprefix("PyTreeSpec(").split(", NoneIsLeaf")[0]
    return "a single leaf" if inner == "*" else inner
