"""The pytree layer: torch's registry on optree's core."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

import fxforms
from fxforms import _tree

Point = collections.namedtuple("Point", "x y")

LEAVES = st.one_of(st.integers(), st.none(), st.text(max_size=2), st.booleans())
TREES = st.recursive(
    LEAVES,
    lambda child: st.one_of(
        st.lists(child, max_size=3),
        st.tuples(child, child),
        st.dictionaries(st.text(max_size=2), child, max_size=3),
        st.builds(Point, child, child),
        st.dictionaries(st.text(max_size=2), child, max_size=2).map(collections.OrderedDict),
        st.lists(child, max_size=2).map(collections.deque),
    ),
    max_leaves=8,
)


@given(TREES)
def test_leaves_and_rebuilding_are_those_of_torch(tree: Any) -> None:
    flat, spec = _tree.flatten(tree)
    assert flat == pytree.tree_leaves(tree)
    rebuilt = spec.unflatten(flat)
    assert rebuilt == tree
    assert type(rebuilt) is type(tree)
    if isinstance(tree, dict):
        assert list(rebuilt) == list(tree)


@given(TREES)
def test_there_is_a_path_for_each_leaf(tree: Any) -> None:
    flat, _ = _tree.flatten(tree)
    paths = _tree.leaf_paths(tree, "tree")
    assert len(paths) == len(flat)
    for path, leaf in zip(paths, flat):
        assert eval(path, {"tree": tree}) == leaf


@given(TREES)
def test_mapping_leaves(tree: Any) -> None:
    marked = _tree.map_leaves(lambda leaf: ("seen", leaf) if leaf == 1 else leaf, tree)
    flat = [("seen", leaf) if leaf == 1 else leaf for leaf in _tree.flatten(tree)[0]]
    assert marked == _tree.flatten(tree)[1].unflatten(flat)
    assert _tree.map_tensors(lambda x: 1 / 0, tree) == tree


def test_none_is_a_leaf() -> None:
    assert _tree.leaves((None, [None])) == [None, None]


@given(TREES)
def test_a_prefix_is_repeated_over_what_is_below_it(tree: Any) -> None:
    flat, spec = _tree.flatten(tree)
    assert _tree.broadcast_prefix(0, spec, "api", "dims") == [0] * len(flat)
    pair_spec = _tree.flatten((tree, tree))[1]
    dims = _tree.broadcast_prefix((0, None), pair_spec, "api", "dims")
    assert dims == [0] * len(flat) + [None] * len(flat)


@pytest.mark.parametrize("prefix", [(0,), (0, 1, 2), [0, 1], {"a": 0}, (0, (1, 2))], ids=str)
def test_a_prefix_that_does_not_fit(prefix: Any) -> None:
    spec = _tree.flatten((1, 2))[1]
    with pytest.raises(fxforms.errors.StructureError, match="api: dims="):
        _tree.broadcast_prefix(prefix, spec, "api", "dims")


def test_types_of_torch_return_types() -> None:
    top = torch.max(torch.eye(2), 0)
    flat, spec = _tree.flatten(top)
    assert len(flat) == 2
    assert type(spec.unflatten(flat)) is torch.return_types.max


def make_dataclass() -> Any:
    @dataclasses.dataclass
    class Layer:
        weight: Tensor
        bias: Tensor

    return Layer


def square(layer: Any) -> Tensor:
    return (layer.weight**2 * layer.bias).sum()


def test_a_dataclass_registered_after_it_was_seen() -> None:
    cls = make_dataclass()
    layer = cls(torch.ones(2), torch.full((2,), 3.0))
    assert _tree.leaves(layer) == [layer]
    with pytest.raises(fxforms.errors.ArgumentError, match=r"args\[0\], which is a Layer"):
        fxforms.grad(square)(layer)
    pytree.register_dataclass(cls)
    gradient = fxforms.grad(square)(layer)
    assert type(gradient) is cls
    assert torch.equal(gradient.weight, 2 * layer.weight * layer.bias)
    batch = cls(torch.ones(4, 2), torch.ones(2, 4))  # torch leaves fields that are None out
    out = fxforms.vmap(square, (cls(0, 1),))(batch)
    assert out.tolist() == [2.0] * 4


def test_a_class_registered_by_the_user() -> None:
    class Box:
        def __init__(self, value: Any, label: str) -> None:
            self.value, self.label = value, label

    pytree.register_pytree_node(
        Box, lambda box: ([box.value], box.label), lambda values, label: Box(*values, label)
    )
    gradient = fxforms.grad(lambda box: (box.value**2).sum())(Box(torch.ones(2), "name"))
    assert isinstance(gradient, Box)
    assert gradient.label == "name"
    out, tangent = fxforms.jvp(lambda x: Box(x * 2, "out"), (torch.ones(2),), (torch.ones(2),))
    assert (out.label, tangent.value.tolist()) == ("out", [2.0, 2.0])


def test_a_constant_of_the_user_is_no_leaf() -> None:
    class Setting:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Setting)

        def __hash__(self) -> int:
            return 1

    pytree.register_constant(Setting)
    assert _tree.leaves((Setting(), 1)) == [1]
    setting = Setting()
    *_, aux = fxforms.vjp(lambda x: (x, (setting, x)), torch.ones(2), has_aux=True)
    assert aux[0] == setting


def test_a_subclass_of_a_registered_class_is_a_leaf() -> None:
    class Special(dict):
        pass

    tree = Special(a=1)
    assert _tree.leaves(tree) == pytree.tree_leaves(tree) == [tree]
