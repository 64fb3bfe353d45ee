"""Products of matrices that share their right factor, as one product of the stacked left factors.

A derivative multiplies the rows of the values and those of the tangents by the same weights. oneDNN
takes ten microseconds to start, whatever the number of rows.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from fxforms.staging.draws import is_draw
from fxforms.staging.graphs import is_mutable
from fxforms.staging.onednn import WORTH
from fxforms.staging.products import call
from fxforms.staging.simplify import aliased, is_static, value, written

__all__ = ["merge_products"]

# Numbers in the left factors and the products up to which stacking costs less than a start.
# Measured on an AMD EPYC of 2024 with factors that are computed and with factors that are copied.
NUMBERS = 170_000

_aten = torch.ops.aten


class Factor(NamedTuple):
    """A matrix, and whether it is transposed."""

    matrix: Node
    transposed: bool


def merge_products(module: GraphModule) -> GraphModule:
    """``module`` with one product in place of those with one right factor; changed in place.

    A row of a product depends on its own row only, so values are equal up to rounding.
    """
    groups: dict[Factor, set[Node]] = defaultdict(set)
    for node in module.graph.nodes:
        if node.target is _aten.mm.default and is_plain(node) and not is_returned(node):
            groups[factor(node.args[1])].add(node)
    fixed = written(module.graph)
    for products in groups.values():
        while len(products) > 1:
            order = Order(module.graph)
            together = order.independent(products)
            products -= set(together)
            if worth_it(together) and order.gather(together, fixed):
                stack(module.graph, together)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def is_plain(product: Node) -> bool:
    """True for float32 on the CPU and sizes that are numbers; stacking would transpose slowly."""
    x = value(product)
    on_cpu = x.dtype == torch.float32 and x.device.type == "cpu"
    in_order = not factor(product.args[0]).transposed
    return (
        on_cpu
        and in_order
        and all(is_static(value(node)) for node in (product, *product.all_input_nodes))
    )


def is_returned(node: Node) -> bool:
    """True for memory that is handed out; two outputs should not be parts of one."""
    return any(
        user.op == "output" or (is_view(user, node) and is_returned(user)) for user in node.users
    )


def is_view(node: Node, source: Node) -> bool:
    """True if ``node`` may be in the memory of ``source``."""
    return any(other is source for other, _ in aliased(node))


def numbers(product: Node) -> int:
    """How many numbers are in the left factor and in the product."""
    left: Any = product.args[0]
    return int(value(left).numel() + value(product).numel())


def worth_it(products: list[Node]) -> bool:
    """True for several products that are faster as one, by oneDNN."""
    lefts: list[Any] = [product.args[0] for product in products]
    rows_by_inner = sum(value(left).numel() for left in lefts)
    return len(products) > 1 and bool(rows_by_inner * value(products[0]).shape[1] >= WORTH)


def factor(matrix: Any) -> Factor:
    """``matrix`` without the transposes that it was made by."""
    transposed = False
    while matrix.target is _aten.permute.default and list(matrix.args[1]) == [1, 0]:
        matrix, transposed = matrix.args[0], not transposed
    return Factor(matrix, transposed)


class Order:
    """The nodes of a graph by position, with what each depends on as bits by position."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.nodes)
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.needs: list[int] = []
        for i, node in enumerate(self.nodes):
            inputs = (self.needs[self.position[x]] for x in node.all_input_nodes)
            self.needs.append(reduce(operator.or_, inputs, 1 << i))

    def independent(self, products: set[Node]) -> list[Node]:
        """The first of ``products`` and those of which none depends on another, up to NUMBERS."""
        together: list[Node] = []
        bits, size = 0, 0
        for product in sorted(products, key=self.position.__getitem__):
            i = self.position[product]
            larger = size + numbers(product)
            if not together or (not self.needs[i] & bits and larger <= NUMBERS):
                together.append(product)
                bits, size = bits | 1 << i, larger
        return together

    def gather(self, products: list[Node], fixed: set[Node]) -> bool:
        """Move what ``products`` depend on to before the first; False if that has to stay."""
        first = self.position[products[0]]
        needs = reduce(operator.or_, (self.needs[self.position[x]] for x in products))
        between = [x for i, x in enumerate(self.nodes) if i > first and needs >> i & 1]
        moved = [node for node in between if node not in products]
        if not all(is_movable(node, fixed) for node in moved):
            return False
        for node in moved:
            products[0].prepend(node)
        return True


def is_movable(node: Node, fixed: set[Node]) -> bool:
    """False for what draws random numbers, has effects or sees memory that is written to."""
    target: Any = node.target
    if target is operator.getitem:
        return True
    builtin = getattr(target, "namespace", "") in ("aten", "prims")
    if not builtin or is_mutable(node) or is_draw(node):
        return False
    return fixed.isdisjoint([node, *node.all_input_nodes])


def stack(graph: Graph, products: list[Node]) -> None:
    """Put slices of one product in the place of ``products``, before the first."""
    lefts: list[Any] = [product.args[0] for product in products]
    with graph.inserting_before(products[0]):
        rows = torch.cat([value(left) for left in lefts])
        stacked = call(graph, _aten.cat.default, lefts, value=rows)
        right: Any = products[0].args[1]
        product = call(graph, _aten.mm.default, stacked, right, value=rows @ value(right))
        start = 0
        for old, left in zip(products, lefts, strict=True):
            end = start + value(left).shape[0]
            part = call(graph, _aten.slice.Tensor, product, 0, start, end, value=value(old))
            old.replace_all_uses_with(part)
            start = end
    for old in products:
        graph.erase_node(old)
