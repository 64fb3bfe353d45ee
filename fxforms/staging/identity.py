"""Products with an identity matrix, as every Jacobian has them in its first step.

A Jacobian pushes the standard basis through a function. The product of that basis with a matrix is
the matrix. A matrix that holds an infinity gives NaN in the product as it is computed; here it
gives its own numbers, which are the derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxforms.staging.simplify import operator_name, substitute, value, written

__all__ = ["fold_identities"]

_aten = torch.ops.aten

# Keep the order of the elements, so that what has the shape of the identity again is the identity.
KEEP_ORDER = frozenset(
    ["_unsafe_view", "alias", "clone", "detach", "reshape", "squeeze", "unsqueeze", "view"]
)


def fold_identities(module: GraphModule) -> GraphModule:
    """``module`` without products with an identity matrix; changed in place and returned."""
    graph = module.graph
    fixed = written(graph)
    reshaped: set[Node] = set()
    for node in list(graph.nodes):
        if node.op != "call_function" or node in fixed:
            continue
        if is_eye(node) or (is_reshape(node) and node.args[0] in reshaped):
            reshaped.add(node)
        elif operator_name(node) in ("mm", "addmm"):
            fold(node, [x for x in node.args if x in reshaped and is_square(x)])
    graph.eliminate_dead_code()
    module.recompile()
    return module


def is_eye(node: Node) -> bool:
    """True for a square ``eye`` of two sizes, as the standard basis is made."""
    return node.target is _aten.eye.m and is_square(node)


def is_square(node: Any) -> bool:
    """True for a matrix with as many rows as columns."""
    shape = value(node).shape
    return len(shape) == 2 and bool(shape[0] == shape[1])


def is_reshape(node: Node) -> bool:
    """True for another shape of the same elements in the same order; ``cat`` of one tensor too."""
    if operator_name(node) == "cat" and len(node.args[0]) == 1:  # type: ignore[arg-type]
        node.replace_all_uses_with(node.args[0][0])  # type: ignore[index, arg-type]
        return False
    return operator_name(node) in KEEP_ORDER and node.target is not _aten.view.dtype


def fold(node: Node, identities: list[Any]) -> None:
    """Put the other factor in the place of a product with one of ``identities``."""
    *term, left, right = node.args
    if left in identities:
        other = right
    elif right in identities:
        other = left
    else:
        return
    if not term:
        substitute(node, other)
    elif not node.kwargs:
        node.target, node.args = _aten.add.Tensor, (term[0], other)
