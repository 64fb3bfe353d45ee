"""The graph itself: what it prints, what it keeps, and what is refused."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from capture_functions import Cube
from capture_graphs import leaf, views_changed_in_place
from expecttest import assert_expected_inline

import fxforms
from fxforms.errors import ArgumentError, MutationError, StructureError, UnsupportedError


def test_built_in_nodes_are_operators() -> None:
    x, w = leaf(2, 3), leaf(3)
    assert_expected_inline(
        str(fxforms.capture_backward((x.sin() @ w).sum(), [x, w])),
        """\
def forward(self, grad_0, saved_0, saved_1, saved_2):
    expand = torch.ops.aten.expand.default(grad_0, [2]);  grad_0 = None
    view = torch.ops.aten.view.default(expand, [2, 1])
    mul = torch.ops.aten.mul.Tensor(view, saved_1);  view = saved_1 = None
    t = torch.ops.aten.t.default(saved_0);  saved_0 = None
    mv = torch.ops.aten.mv.default(t, expand);  t = expand = None
    cos = torch.ops.aten.cos.default(saved_2);  saved_2 = None
    mul_1 = torch.ops.aten.mul.Tensor(mul, cos);  mul = cos = None
    return (mul_1, mv)""",
    )


def test_a_function_stands_between_operators() -> None:
    x = leaf(3)
    assert_expected_inline(
        str(fxforms.capture_backward(Cube.apply(x.exp()).sin(), x)),
        """\
def forward(self, grad_0, saved_0, saved_1, saved_2):
    cos = torch.ops.aten.cos.default(saved_0);  saved_0 = None
    mul = torch.ops.aten.mul.Tensor(grad_0, cos);  grad_0 = cos = None
    cube_backward = fxforms_CubeBackward([saved_1], [mul]);  saved_1 = mul = None
    getitem = cube_backward[0];  cube_backward = None
    mul_1 = torch.ops.aten.mul.Tensor(getitem, saved_2);  getitem = saved_2 = None
    return (mul_1,)""",
    )


def test_leaves_are_accumulated() -> None:
    x, w = leaf(3), leaf(3)
    w.grad = torch.zeros(3).double()
    assert_expected_inline(
        str(fxforms.capture_backward(x * w)),
        """\
def forward(self, grad_0, saved_0, saved_1, saved_2):
    mul = torch.ops.aten.mul.Tensor(grad_0, saved_1);  saved_1 = None
    mul_1 = torch.ops.aten.mul.Tensor(grad_0, saved_0);  grad_0 = saved_0 = None
    accumulate_grad = fxforms_accumulate_grad(None, mul_1);  mul_1 = None
    accumulate_grad_1 = fxforms_accumulate_grad(saved_2, mul);  saved_2 = mul = None
    return (accumulate_grad, accumulate_grad_1)""",
    )


def test_views_are_selects_and_slices() -> None:
    (y,), inputs = views_changed_in_place()
    code = str(fxforms.capture_backward(y, inputs))
    assert "select_scatter" in code
    assert "strided" not in code
    assert "copy" not in code


def test_no_operator_writes_to_an_argument() -> None:
    x = leaf(3, 3)
    graph = fxforms.capture_backward(x.cumprod(0), x).graph_module.graph
    schemas = [n.target._schema for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert schemas
    assert not any(schema.is_mutable for schema in schemas)


def test_a_saved_leaf_is_the_leaf() -> None:
    x, w = leaf(3), leaf(3)
    backward = fxforms.capture_backward(x * w, x)
    assert len(backward.saved) == 1
    assert backward.saved[0] is w


def test_what_only_a_shape_is_needed_of_is_not_saved() -> None:
    x = leaf(3, 3)
    assert fxforms.capture_backward(x.sum(0).expand(2, 3).t(), x).saved == ()


def test_structures() -> None:
    x, w = leaf(3), leaf(3)
    backward = fxforms.capture_backward({"a": x * w, "b": (w.sum(),)}, {"x": x, "w": [w]})
    g = torch.randn(3, dtype=torch.double)
    found = backward({"a": g, "b": (torch.ones(()).double(),)})
    torch.testing.assert_close(found["x"], g * w)
    torch.testing.assert_close(found["w"], [g * x + 1])
    assert backward.inputs["x"] is x


def test_one_element_needs_no_cotangent() -> None:
    x = leaf(3)
    torch.testing.assert_close(fxforms.capture_backward(x.sin().sum(), x)(), x.cos())


def test_other_layouts_of_cotangents_and_saved_values() -> None:
    x, w = leaf(3, 4), leaf(4, 3)
    y = (x @ w).t().reshape(9)
    backward = fxforms.capture_backward(y, [x, w])
    g = torch.randn(9, 2, dtype=torch.double)[:, 0]
    saved = [s.detach().t().contiguous().t() for s in backward.saved]
    wanted = torch.autograd.grad(y, [x, w], g)
    torch.testing.assert_close(backward(g, saved), list(wanted))


def test_the_graph_can_be_used_again() -> None:
    x = leaf(3)
    y = x.sin().sum()
    fxforms.capture_backward(y, x)
    y.backward()
    torch.testing.assert_close(x.grad, x.cos().detach())


def test_the_captured_function_survives_the_graph() -> None:
    x = leaf(3)
    y = x.sin().sum()
    backward = fxforms.capture_backward(y, x)
    y.backward()  # frees what y had saved
    torch.testing.assert_close(backward(), x.cos())


def test_nothing_keeps_a_graph_alive() -> None:
    x = leaf(3)
    inner = x.exp()
    y = inner.sin()
    alive = weakref.ref(inner)
    fxforms.capture_backward(y, x)
    del inner, y
    gc.collect()
    assert alive() is None


def test_a_saved_value_changed_in_place() -> None:
    x = leaf(3)
    backward = fxforms.capture_backward(x.sin().sum(), x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(MutationError, match="saved value was changed in place"):
        backward()
    torch.testing.assert_close(backward(None, [x]), x.cos())


def test_a_value_changed_before_the_capture() -> None:
    x = leaf(3)
    y = x.sin()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fxforms.capture_backward(y, x)
    z = x.exp().sum()  # and the next capture works
    torch.testing.assert_close(fxforms.capture_backward(z, x)(), x.exp())


def test_a_freed_graph() -> None:
    x = leaf(3)
    y = x.sin().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        fxforms.capture_backward(y, x)


@pytest.mark.parametrize("wrong", [torch.ones(3), 2.0, None])
def test_wrong_tensors(wrong) -> None:
    x = leaf(3)
    with pytest.raises(ArgumentError, match=r"capture_backward\(outputs"):
        fxforms.capture_backward([x.sin(), wrong], x)
    with pytest.raises(ArgumentError, match=r"capture_backward\(inputs"):
        fxforms.capture_backward(x.sin(), [x, wrong])


@pytest.mark.parametrize(
    ("cotangents", "says"),
    [
        (None, "needs a cotangent for outputs of shapes"),
        ([torch.ones(3).double()], "in the structure of the outputs"),
        (torch.ones(2).double(), "cotangent 0 must be a torch.float64 tensor of shape .3,."),
        (torch.ones(3), "cotangent 0 must be a torch.float64"),
    ],
)
def test_wrong_cotangents(cotangents, says: str) -> None:
    backward = fxforms.capture_backward(leaf(3).sin())
    with pytest.raises(StructureError, match=says):
        backward(cotangents)


def test_wrong_saved_values() -> None:
    backward = fxforms.capture_backward(leaf(3).sin())
    g = torch.ones(3).double()
    with pytest.raises(StructureError, match="takes 1 saved values, got 0"):
        backward(g, [])
    with pytest.raises(StructureError, match="saved value 0 must be"):
        backward(g, [torch.ones(2).double()])


def test_inside_a_transform() -> None:
    def f(x):
        fxforms.capture_backward(x.sin(), x)

    with pytest.raises(UnsupportedError, match="inside a transform"):
        fxforms.grad(f)(torch.tensor(1.0))
