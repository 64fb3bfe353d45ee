"""Hooks in captured graphs: nodes that run the hook at every call, with the engine's meaning."""

from __future__ import annotations

import pytest
import torch
from capture_graphs import assert_same, leaf
from expecttest import assert_expected_inline

import fxforms


def double(grad):
    return 2 * grad


def hooked() -> tuple[torch.Tensor, torch.Tensor]:
    """An output and a leaf, with a hook of each kind that changes gradients on the way."""
    x = leaf(3)
    y = x.exp()
    y.register_hook(double)
    y.grad_fn.register_prehook(lambda grads: (grads[0] + 1,))
    y.grad_fn.register_hook(lambda grads, _: (grads[0] * 3,))
    x.register_hook(lambda grad: grad - 1)
    return y.sin(), x


def closed_form(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The gradient that the hooks of :func:`hooked` make."""
    return (g * x.exp().cos() * 2 + 1) * x.exp() * 3 - 1


def test_hooks_change_gradients() -> None:
    y, x = hooked()
    backward = fxforms.capture_backward(y, x)
    g = torch.randn(3, dtype=torch.double)
    found = backward(g)
    wanted = closed_form(x, g)
    torch.testing.assert_close(found, wanted)
    (eager,) = torch.autograd.grad(y, x, g, create_graph=True)
    again = torch.autograd.grad(found.sum(), x, retain_graph=True)
    assert_same(again, torch.autograd.grad(eager.sum(), x))


def test_hooks_under_vmap() -> None:
    y, x = hooked()
    batch = torch.randn(4, 3, dtype=torch.double)
    with torch.no_grad():
        found = fxforms.vmap(fxforms.capture_backward(y, x))(batch)
    torch.testing.assert_close(found, torch.stack([closed_form(x.detach(), g) for g in batch]))


def test_each_hook_is_a_node() -> None:
    y, x = hooked()
    assert_expected_inline(
        str(fxforms.capture_backward(y, x)),
        """\
def forward(self, grad_0, saved_0, saved_1):
    cos = torch.ops.aten.cos.default(saved_0);  saved_0 = None
    mul = torch.ops.aten.mul.Tensor(grad_0, cos);  grad_0 = cos = None
    tensor_hook_double = fxforms_tensor_hook_double(mul);  mul = None
    getitem = tensor_hook_double[0];  tensor_hook_double = None
    pre_hook = fxforms_pre_hook([getitem]);  getitem = None
    getitem_1 = pre_hook[0];  pre_hook = None
    mul_1 = torch.ops.aten.mul.Tensor(getitem_1, saved_1);  saved_1 = None
    post_hook = fxforms_post_hook([mul_1], [getitem_1]);  mul_1 = getitem_1 = None
    getitem_2 = post_hook[0];  post_hook = None
    tensor_hook = fxforms_tensor_hook(getitem_2);  getitem_2 = None
    getitem_3 = tensor_hook[0];  tensor_hook = None
    return (getitem_3,)""",
    )


def test_a_hook_runs_at_every_call() -> None:
    x = leaf(3)
    y = x * 1
    factor = [2.0]
    y.register_hook(lambda grad: grad * factor[0])
    backward = fxforms.capture_backward(y.sin(), x)
    g = torch.ones(3, dtype=torch.double)
    for factor[0] in (2.0, 5.0):
        torch.testing.assert_close(backward(g), factor[0] * x.cos())


def test_a_hook_sees_every_gradient_in_order() -> None:
    x = leaf(3)
    seen: list[str] = []
    y = x * 2
    a, b = y.sin(), y.cos()
    for name, tensor in {"x": x, "y": y, "a": a, "b": b}.items():
        tensor.register_hook(lambda grad, name=name: seen.append(name))
    loss = (a * b).sum()
    backward = fxforms.capture_backward(loss, x)
    assert seen == []  # nothing ran
    backward()
    found, seen[:] = list(seen), []
    torch.autograd.grad(loss, x)
    assert found == seen


def test_a_hook_on_an_absent_gradient_is_not_called() -> None:
    x = leaf(2, 3)
    a, b = x.unbind(0)
    a.register_hook(lambda grad: pytest.fail("called"))
    found = fxforms.capture_backward(b.sin(), x)(torch.ones(3).double())
    torch.testing.assert_close(found, torch.stack([torch.zeros(3).double(), b.cos()]))


def test_sizes_that_differ_between_passes() -> None:
    for size in (2, 3, 4, 2):
        x = leaf(size, 1)
        y = x.exp().expand(size, size)
        y.register_hook(double)
        y.grad_fn.register_prehook(lambda grads: (grads[0] + 1,))
        x.register_post_accumulate_grad_hook(lambda leaf: None)
        (found,) = fxforms.capture_backward(y.sin().sum())()
        wanted = ((x.exp().cos() * 2 + 1) * size * x.exp()).detach()
        torch.testing.assert_close(found.detach(), wanted)
        with fxforms.compiled_backward(lambda graph, examples: graph):
            y.sin().sum().backward()
        torch.testing.assert_close(x.grad, wanted)


def test_leaves_without_inputs() -> None:
    x, w = leaf(3), leaf(3)
    w.grad = torch.ones(3, dtype=torch.double)
    before = w.grad.clone()
    backward = fxforms.capture_backward(x.sin() * w)
    g = torch.randn(3, dtype=torch.double)
    found = dict(zip(map(id, backward.inputs), backward(g)))
    torch.testing.assert_close(found[id(x)], g * x.cos() * w)
    torch.testing.assert_close(found[id(w)], 1 + g * x.sin())
    assert x.grad is None
    assert torch.equal(w.grad, before)


def test_hooks_after_accumulation() -> None:
    x = leaf(3)
    x.grad = torch.ones(3, dtype=torch.double)
    kept = x.grad

    def halve(leaf: torch.Tensor) -> None:
        leaf.grad /= 2

    x.register_hook(double)
    x.register_post_accumulate_grad_hook(halve)
    y = x.sin()
    backward = fxforms.capture_backward(y)
    g = torch.randn(3, dtype=torch.double)
    (found,) = backward(g)
    torch.testing.assert_close(found, (1 + 2 * g * x.cos()) / 2)
    assert x.grad is kept
    torch.testing.assert_close(kept, torch.ones(3, dtype=torch.double))
    with torch.no_grad():
        torch.testing.assert_close(backward(g)[0], found)
    torch.testing.assert_close(fxforms.capture_backward(y, x)(g), 2 * g * x.cos())


def test_a_hook_that_takes_the_gradient_away() -> None:
    x = leaf(3)

    def drop(leaf: torch.Tensor) -> None:
        leaf.grad = None

    x.register_post_accumulate_grad_hook(drop)
    assert fxforms.capture_backward(x.sin().sum())() == [None]


def test_a_hook_after_accumulation_under_vmap_is_refused() -> None:
    x = leaf(3)
    x.register_post_accumulate_grad_hook(lambda leaf: None)
    backward = fxforms.capture_backward(x.sin())
    with pytest.raises(fxforms.errors.UnsupportedError, match="post_accumulate_grad_hook"):
        fxforms.vmap(backward)(torch.ones(2, 3).double())


def test_saved_tensor_hooks_are_undone_at_the_capture() -> None:
    x = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy(), torch.from_numpy):
        y = x.exp() * 2
    backward = fxforms.capture_backward(y, x)
    g = torch.randn(3, dtype=torch.double)
    torch.testing.assert_close(backward(g), 2 * g * x.exp().detach())


def test_a_hook_in_c_is_refused() -> None:
    x = leaf(3)
    y = x.exp()
    y.retain_grad()
    with pytest.raises(fxforms.errors.UnsupportedError, match="retain_grad"):
        fxforms.capture_backward(y.sin(), x)


@pytest.mark.parametrize("kind", ["pre", "post", "leaf"])
def test_a_hook_that_returns_the_wrong_thing(kind: str) -> None:
    x = leaf(3)
    y = x.exp()
    if kind == "pre":
        y.grad_fn.register_prehook(lambda grads: (*grads, *grads))
    elif kind == "post":
        y.grad_fn.register_hook(lambda grads, _: ())
    else:
        x.register_post_accumulate_grad_hook(lambda leaf: leaf)
    backward = fxforms.capture_backward(y.sum())
    with pytest.raises(fxforms.errors.GradientError, match="hook"):
        backward()
    assert x.grad is None
