"""Small products of matrices written out, so that the compiler fuses them with what is around.

A call of the library costs a microsecond. An outer product is elementwise, and a product with one
row or one column a short sum; both then cost what their numbers cost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["inline_products"]

# Multiplications up to which a matrix times a vector is written out.
SMALL = 4096

_aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64)


def inline_products(module: GraphModule) -> GraphModule:
    """``module`` with its small products written out; changed in place and returned.

    Sums are taken in another order than the library's, so results differ by rounding.
    """
    for node in list(module.graph.nodes):
        if node.target is _aten.mm.default:
            with module.graph.inserting_before(node):
                made = written_out(module.graph, *node.args)
            if made is not None:
                made.meta = dict(node.meta)
                node.replace_all_uses_with(made)
                module.graph.erase_node(node)
    module.recompile()
    return module


def written_out(graph: Graph, left: Any, right: Any) -> Node | None:
    """The product in elementwise operators; None where the library does better."""
    x, y = left.meta["val"], right.meta["val"]
    rows, inner = x.shape
    columns = y.shape[1]
    if x.dtype not in DTYPES or not all(isinstance(n, int) for n in (rows, inner, columns)):
        return None
    if inner == 1:
        return call(graph, _aten.mul.Tensor, left, right, value=x * y)
    if columns == 1 and rows * inner <= SMALL:
        row = call(graph, _aten.permute.default, right, [1, 0], value=y.t())
        terms = call(graph, _aten.mul.Tensor, left, row, value=x * y.t())
        return graph.call_function(_aten.sum.dim_IntList, (terms, [1], True))
    if rows == 1 and inner * columns <= SMALL:
        column = call(graph, _aten.permute.default, left, [1, 0], value=x.t())
        terms = call(graph, _aten.mul.Tensor, column, right, value=x.t() * y)
        return graph.call_function(_aten.sum.dim_IntList, (terms, [0], True))
    return None


def call(graph: Graph, target: Any, *args: Any, value: Any) -> Node:
    """A node with what it gives in the trace."""
    node = graph.call_function(target, args)
    node.meta["val"] = value
    return node
