"""The one adapter over oneDNN: large products of matrices where that is faster than MKL.

MKL, which torch calls for float32, keeps to AVX2 on processors that are not Intel's. oneDNN takes
AVX-512 there, for about twice the rate, after ten microseconds of its own. Inductor knows oneDNN
for constant weights only, so the operator and its lowering are here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._inductor.ir import FixedLayout, TensorBox
from torch._inductor.lowering import register_lowering
from torch._inductor.mkldnn_ir import LinearUnary
from torch.fx import Graph, GraphModule, Node

__all__ = ["use_onednn"]

# Multiplications from which the rate outweighs the start, measured on an AMD EPYC of 2024.
WORTH = 2_000_000

_aten = torch.ops.aten
_TRANSPOSED = (_aten.permute.default, _aten.t.default, _aten.transpose.int)
# No bias, no function of the result with its numbers and its name.
_PLAIN = (None, "none", [-1], "")


@torch.library.custom_op("fxforms_onednn::linear", mutates_args=())
def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T for x of shape [m, k] and weight of shape [n, k]."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, *_PLAIN)
    return product


@linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


_linear = torch.ops.fxforms_onednn.linear.default


@register_lowering(_linear, type_promotion_kind=None)
def lower_linear(x: Any, weight: Any) -> Any:
    """The call of oneDNN in Inductor's form."""
    x = LinearUnary.require_contiguous(LinearUnary.realize_input(x))
    weight = LinearUnary.realize_input(weight)
    size = [x.get_size()[0], weight.get_size()[0]]
    layout = FixedLayout(device=x.get_device(), dtype=x.get_dtype(), size=size)
    return TensorBox.create(
        LinearUnary(layout=layout, inputs=[x, weight], constant_args=list(_PLAIN))
    )


@cache
def is_faster() -> bool:
    """True where torch has oneDNN and MKL does not use what the processor has."""
    cpuinfo = Path("/proc/cpuinfo")
    foreign = cpuinfo.exists() and "AuthenticAMD" in cpuinfo.read_text()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return foreign and wide and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def use_onednn(module: GraphModule) -> GraphModule:
    """``module`` with its large products by oneDNN; changed in place and returned."""
    for node in list(module.graph.nodes):
        if node.target is _aten.mm.default and is_large(*node.args):
            replace(module.graph, node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def is_large(left: Any, right: Any) -> bool:
    """True for a product that oneDNN makes faster; a transposed left factor would be copied."""
    x, y = left.meta["val"], right.meta["val"]
    sizes = (*x.shape, y.shape[1])
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and left.target not in _TRANSPOSED
        and all(isinstance(size, int) for size in sizes)
        and sizes[0] * sizes[1] * sizes[2] >= WORTH
    )


def replace(graph: Graph, product: Node) -> None:
    """Put oneDNN's product in the place of torch's."""
    left, right = product.args
    assert isinstance(right, Node)
    with graph.inserting_before(product):
        weight = graph.call_function(_aten.permute.default, (right, [1, 0]))
        weight.meta["val"] = right.meta["val"].t()
        made = graph.call_function(_linear, (left, weight))
    made.meta = dict(product.meta)
    product.replace_all_uses_with(made)
    graph.erase_node(product)
