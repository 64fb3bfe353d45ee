"""Rewrites of a traced graph that only a tracer of transforms can make.

torch's forward mode gives every operand without a tangent a zero tensor and multiplies by it. A
compiler must keep ``0 * x``, as x may be infinite; here the zero is known to stand for no tangent
at all, as a symbolic zero of JAX does, and as torch's own zero tensors do in ``mul`` and ``add``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["drop_zero_tangents"]

_aten = torch.ops.aten
_Operator = type(_aten.mm.default)

# Linear in the first argument, with one output: zero where that is zero.
LINEAR = frozenset(
    [
        "_log_softmax_backward_data",
        "_softmax_backward_data",
        "_to",
        "_unsafe_view",
        "alias",
        "clone",
        "cumsum",
        "detach",
        "diagonal",
        "diagonal_backward",
        "div",
        "elu_backward",
        "expand",
        "flip",
        "gelu_backward",
        "hardtanh_backward",
        "leaky_relu_backward",
        "mean",
        "mul",
        "neg",
        "permute",
        "reshape",
        "roll",
        "select",
        "select_backward",
        "sigmoid_backward",
        "silu_backward",
        "slice",
        "slice_backward",
        "softplus_backward",
        "squeeze",
        "sum",
        "t",
        "tanh_backward",
        "threshold_backward",
        "transpose",
        "tril",
        "triu",
        "unfold",
        "unsqueeze",
        "view",
    ]
)
# Linear in each of the first two arguments: zero where either is zero.
BILINEAR = frozenset({"bmm", "dot", "matmul", "mm", "mul", "mv", "outer"})
# A term and the product of the next two.
SUM_AND_PRODUCT = frozenset({"addmm", "addmv", "addbmm", "baddbmm"})
# Change the shape of their argument, not its numbers.
RESHAPING = {
    _aten.squeeze_.default: _aten.squeeze.default,
    _aten.squeeze_.dim: _aten.squeeze.dim,
    _aten.squeeze_.dims: _aten.squeeze.dims,
    _aten.unsqueeze_.default: _aten.unsqueeze.default,
    _aten.t_.default: _aten.t.default,
    _aten.transpose_.default: _aten.transpose.int,
}
# What the tracer asks of a symbolic shape, where the answer is first used.
SHAPE_QUERIES = frozenset(
    [
        _aten.sym_size.int,
        _aten.sym_stride.int,
        _aten.sym_numel.default,
        _aten.sym_storage_offset.default,
    ]
)


def drop_zero_tangents(module: GraphModule) -> GraphModule:
    """``module`` without the arithmetic on zero tangents; changed in place and returned.

    It must be as it was traced: the tensor that torch makes for a missing tangent is told from a
    zero of the user's by the unused operator that is traced beside it.
    """
    graph = module.graph
    make_reshapes_pure(graph)
    fixed = written(graph)
    zeros = set(missing_tangents(graph)) - fixed
    for node in list(graph.nodes):
        if node.op == "call_function" and node not in fixed and node not in zeros:
            if is_zero(node, zeros):
                zeros.add(node)
            else:
                replace_sum(node, zeros)
    materialise(graph, zeros)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def operator_name(node: Node) -> str:
    """The operator's name without namespace and overload; empty for what is not of ATen."""
    if isinstance(node.target, _Operator) and node.target.namespace == "aten":
        return node.target._schema.name.removeprefix("aten::").removesuffix("_copy")
    return ""


def value(node: Node) -> Any:
    """The fake tensor that ``node`` gave in the trace."""
    return node.meta["val"]


def make_reshapes_pure(graph: Graph) -> None:
    """Let ``squeeze_`` and its like, which the batch rules use on new tensors, be ``squeeze``.

    A query tells the shape that its tensor was made with, though it may stand after a ``squeeze_``.
    """
    queries = [node for node in graph.nodes if node.target in SHAPE_QUERIES]
    for query in queries:
        source: Any = query.args[0]
        if source.op != "placeholder":
            source.append(query)
    for node in graph.nodes:
        source = node.args[0] if node.target in RESHAPING else None
        if isinstance(source, Node) and set(source.users).difference(queries) == {node}:
            node.target = RESHAPING[node.target]


def written(graph: Graph) -> set[Node]:
    """The nodes whose memory is written to, directly or through a view."""
    family: dict[Node, list[Node]] = {}
    changed: set[Node] = set()
    for node in graph.nodes:
        family[node] = [node]
        for source, is_write in aliased(node):
            if is_write:
                changed.add(source)
            if family[source] is not family[node]:
                family[source] += family[node]
                for member in family[node]:
                    family[member] = family[source]
    return {member for node in changed for member in family[node]}


def aliased(node: Node) -> Iterator[tuple[Node, bool]]:
    """The arguments whose memory ``node`` may hand on, and whether it writes to them."""
    if isinstance(node.target, _Operator):
        arguments = zip(node.target._schema.arguments, node.args)
        for schema, argument in arguments:
            if schema.alias_info is not None:
                sources = argument if isinstance(argument, list | tuple) else [argument]
                yield from ((x, schema.alias_info.is_write) for x in sources if isinstance(x, Node))
    elif node.op == "call_function":
        pure = node.target is operator.getitem
        yield from ((source, not pure) for source in node.all_input_nodes)


def is_static(tensor: Any) -> bool:
    """True if no size of ``tensor`` is symbolic."""
    return all(isinstance(size, int) for size in tensor.shape)


def missing_tangents(graph: Graph) -> Iterator[Node]:
    """What torch put in place of tangents that are not there.

    Either the zero tensor itself, or the numbers it was turned into for an operator that knows no
    zero tensors: a scalar zero, expanded. The zero tensor then has no user.
    """
    unused: list[tuple[torch.Size, torch.dtype]] = []
    for node in graph.nodes:
        if node.target is _aten._efficientzerotensor.default:
            if node.users:
                yield node
            elif is_static(value(node)):
                unused.append((value(node).shape, value(node).dtype))
        elif is_expanded_zero(node) and is_static(value(node)):
            made = (value(node).shape, value(node).dtype)
            if made in unused:
                unused.remove(made)
                yield node


def is_expanded_zero(node: Node) -> bool:
    """True for an expanded ``zeros([])`` or ``full([], 0)``."""
    source = node.args[0] if operator_name(node) == "expand" else None
    if not isinstance(source, Node) or operator_name(source) not in ("zeros", "full"):
        return False
    return list(source.args) in ([[]], [[], 0], [[], 0.0])


def is_zero(node: Node, zeros: set[Node]) -> bool:
    """True if ``node`` is zero because of what it is computed from."""
    name = operator_name(node)
    args: Any = node.args
    if name in LINEAR and args and args[0] in zeros:
        return True
    if name in BILINEAR and any(x in zeros for x in args[:2]):
        return True
    if name in ("add", "sub", "where", "cat", "stack"):
        operands = {"where": args[1:], "cat": args[0], "stack": args[0]}.get(name, args[:2])
        return bool(operands) and all(isinstance(x, Node) and x in zeros for x in operands)
    if name in SUM_AND_PRODUCT:
        return args[0] in zeros and (args[1] in zeros or args[2] in zeros)
    return False


def replace_sum(node: Node, zeros: set[Node]) -> None:
    """Put the other terms in the place of a sum of which some are zero."""
    name, args = operator_name(node), node.args
    if name in ("add", "sub") and any(x in zeros for x in args[:2]):
        kept = args[0] if args[1] in zeros else args[1]
        if args[1] in zeros:
            substitute(node, kept)
        elif not node.kwargs.get("alpha"):
            substitute(node, kept, None if name == "add" else _aten.neg.default)
    elif name in SUM_AND_PRODUCT and name != "addbmm" and not node.kwargs:
        if args[1] in zeros or args[2] in zeros:
            substitute(node, args[0])
        elif args[0] in zeros:
            product = {"addmm": _aten.mm, "addmv": _aten.mv, "baddbmm": _aten.bmm}[name]
            node.target, node.args = product.default, args[1:3]


def substitute(node: Node, kept: Any, sign: Callable[..., Any] | None = None) -> None:
    """Use ``kept``, in the shape of ``node``, where ``node`` was used; not if the dtype differs."""
    if not isinstance(kept, Node) or value(kept).dtype != value(node).dtype:
        return
    same = is_static(value(kept)) and value(kept).shape == value(node).shape
    if not same and not is_static(value(node)):
        return
    graph = node.graph
    with graph.inserting_before(node):
        if sign is not None:
            kept = derived(graph.call_function(sign, (kept,)), sign(value(kept)))
        if not same:
            shape = list(value(node).shape)
            kept = derived(
                graph.call_function(_aten.expand.default, (kept, shape)), value(kept).expand(shape)
            )
        if is_static(value(kept)) and value(kept).stride() != value(node).stride():
            kept = laid_out(graph, kept, value(node))
    node.replace_all_uses_with(kept)


def laid_out(graph: Graph, kept: Node, like: Any) -> Node:
    """``kept`` with the strides of ``like``, which a later ``view`` may count on."""
    sizes = (kept, list(like.shape), list(like.stride()))
    made = derived(graph.call_function(_aten.new_empty_strided.default, sizes), like)
    return derived(graph.call_function(_aten.copy.default, (made, kept)), like)


def derived(node: Node, result: Any) -> Node:
    """``node`` with what it would have given in the trace."""
    node.meta["val"] = result
    return node


def materialise(graph: Graph, zeros: set[Node]) -> None:
    """Give what still needs a zero one that is made on the spot."""
    for node in [node for node in graph.nodes if node in zeros]:
        users = [user for user in node.users if user not in zeros]
        like = value(node)
        if not users or not is_static(like) or is_expanded_zero(node):
            continue
        with graph.inserting_before(node):
            made = graph.call_function(
                _aten.full.default,
                (list(like.shape), 0),
                {"dtype": like.dtype, "device": like.device},
            )
        derived(made, torch.zeros_like(like, memory_format=torch.contiguous_format))
        for user in users:
            user.replace_input_with(node, made)
