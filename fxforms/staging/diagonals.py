"""The diagonal of a product of matrices without the rest of it.

A Laplacian is the trace of a Hessian whose last step is a product; its diagonal is a sum of
elementwise products, which the compiler fuses with what is around.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxforms.staging.identity import KEEP_ORDER
from fxforms.staging.products import DTYPES, call
from fxforms.staging.simplify import is_static, operator_name, value

__all__ = ["shorten_diagonals"]

_aten = torch.ops.aten
# The offset and the two dims of a diagonal where they are left out.
DEFAULTS = [0, 0, 1]


def shorten_diagonals(module: GraphModule) -> GraphModule:
    """``module`` with a sum for each product of which only the diagonal is used; changed in place.

    For a of shape [..., n, k] and b of shape [k, n], the diagonals of a @ b are the sums over the
    last dim of a * b.T.
    """
    for node in list(module.graph.nodes):
        if operator_name(node) == "diagonal" and (product := product_of(node)) is not None:
            replace(node, product)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def product_of(diagonal: Node) -> Any:
    """The product of which ``diagonal`` is the only use; None if there is none."""
    square: Any = diagonal.args[0]
    shape = value(square).shape
    given: list[Any] = list(diagonal.args[1:])
    offset, *dims = given + DEFAULTS[len(given) :]
    product = origin(square)
    if product is None or offset != 0 or value(product).dtype not in DTYPES:
        return None
    if value(product).dtype != value(square).dtype:  # its bits are read as another dtype
        return None
    last = {dim % len(shape) for dim in dims} == {len(shape) - 1, len(shape) - 2}
    columns = value(product).shape[1]
    return product if last and shape[-2] == shape[-1] == columns else None


def origin(node: Any) -> Node | None:
    """The product whose elements ``node`` has in the same order, if nothing else uses them."""
    while len(node.users) == 1 and is_static(value(node)):
        if node.target is _aten.mm.default:
            return node  # type: ignore[no-any-return]
        if node.target is operator.getitem and is_whole(node.args[0]):
            node = node.args[0].args[0]
        elif operator_name(node) in KEEP_ORDER:
            node = node.args[0]
        else:
            return None
    return None


def is_whole(split: Node) -> bool:
    """True for a split into one part."""
    sizes: Any = split.args[1]
    return operator_name(split) == "split_with_sizes" and len(sizes) == 1


def replace(diagonal: Node, product: Node) -> None:
    """Put the sum of elementwise products in the place of ``diagonal``."""
    graph = diagonal.graph
    left: Any
    right: Any
    left, right = product.args
    square: Any = diagonal.args[0]
    rows = [*value(square).shape[:-1], value(left).shape[1]]
    with graph.inserting_before(diagonal):
        x, y = value(left).reshape(rows), value(right).t()
        factors = (
            call(graph, _aten.reshape.default, left, rows, value=x),
            call(graph, _aten.permute.default, right, [1, 0], value=y),
        )
        terms = call(graph, _aten.mul.Tensor, *factors, value=x * y)
        total = call(graph, _aten.sum.dim_IntList, terms, [-1], value=(x * y).sum(-1))
    diagonal.replace_all_uses_with(total)
