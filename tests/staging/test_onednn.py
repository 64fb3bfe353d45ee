"""Large products go to oneDNN, with the values that float64 gives; small ones stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.compile_fx import compile_fx_inner, get_cpp_wrapper_config
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fxforms.staging.onednn import use_onednn

pytestmark = [
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch"),
]
linear = torch.ops.fxforms_onednn.linear.default

SEED = torch.Generator().manual_seed(0)
X = torch.randn(512, 64, generator=SEED)
W = torch.randn(64, 96, generator=SEED)

LARGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda x, w: x @ w,
    "transposed weight": lambda x, w: x @ w.t().contiguous().t(),
    "computed factors": lambda x, w: x.sin() @ (w * 2),
    "sliced": lambda x, w: x[:, 1:] @ w[1:],
    "then more": lambda x, w: torch.tanh(x @ w) + 1,
}
OTHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "small": lambda x, w: x[:100] @ w,
    "transposed left factor": lambda x, w: x.t() @ x,
    "float64": lambda x, w: x.double() @ w.double(),
}


def traced(f: Callable[[Tensor, Tensor], Tensor]) -> GraphModule:
    table = select_decomp_table()
    return make_fx(lambda x, w: (f(x, w),), tracing_mode="fake", decomposition_table=table)(X, W)


def products(graph: GraphModule) -> int:
    return sum(node.target is linear for node in graph.graph.nodes)


@pytest.mark.parametrize("f", LARGE.values(), ids=LARGE)
def test_a_large_product_is_replaced(f: Callable[[Tensor, Tensor], Tensor]) -> None:
    graph = use_onednn(traced(f))
    graph.graph.lint()
    assert products(graph) == 1
    expected = f(X.double(), W.double()).float()
    torch.testing.assert_close(graph(X, W)[0], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("f", OTHER.values(), ids=OTHER)
def test_other_products_stay(f: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert products(use_onednn(traced(f))) == 0


def test_a_symbolic_size_stays() -> None:
    graph = make_fx(lambda x, w: (x @ w,), tracing_mode="symbolic")(X, W)
    assert products(use_onednn(graph)) == 0


@pytest.mark.parametrize("cpp_wrapper", [False, True])
@pytest.mark.parametrize("name", ["computed factors", "sliced"])
def test_inductor_compiles_it(name: str, cpp_wrapper: bool) -> None:
    graph = use_onednn(traced(LARGE[name]))
    options: dict[str, Any] = {"cpp_wrapper": cpp_wrapper, "cpp.vec_isa_ok": True}
    with torch.no_grad(), torch._inductor.config.patch(options | get_cpp_wrapper_config()):
        compiled = compile_fx_inner(graph, [X, W], is_inference=True, cpp_wrapper=cpp_wrapper)
        (output,) = compiled([X, W])
    expected = LARGE[name](X.double(), W.double()).float()
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-4)
