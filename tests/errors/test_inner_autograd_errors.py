"""torch's own autograd, hooks and NumPy inside a transform, where they have no right meaning.

The snapshots are written by ``EXPECTTEST_ACCEPT=1 pytest tests/errors``; read what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from error_cases import BATCH, Messages, X
from torch import Tensor
from torch.autograd import forward_ad, graph
from torch.utils.checkpoint import checkpoint

import fxforms
from fxforms.errors import UnsupportedError


def inner_grad(x: Tensor) -> Tensor:
    return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0].sum()


def captured_leaf(x: Tensor) -> Tensor:
    w = torch.ones(3, requires_grad=True)
    return fxforms.grad(lambda x: torch.autograd.grad((w * x).sum(), w)[0].sum())(x)


def inner_backward(x: Tensor) -> Tensor:
    v = x.detach().clone().requires_grad_()
    (v**3).sum().backward()
    return (v.grad * x).sum()


def turned_off(x: Tensor) -> Tensor:
    return (x.requires_grad_(False) ** 3).sum()


def retained(x: Tensor) -> Tensor:
    y = x.sin()
    y.retain_grad()
    return y.sum()


def hooked(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: 2 * g)
    return y.sum()


def hooked_together(x: Tensor) -> Tensor:
    y = x.sin()
    graph.register_multi_grad_hook([x, y], lambda grads: None)
    return y.sum()


def offloaded(x: Tensor) -> Tensor:
    with graph.save_on_cpu():
        return (x.sin() * x).sum()


def forward_mode(x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, x) ** 2).tangent.sum()


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy()).sum() + x.sum()


def pulled_by(pull: Callable[..., Any]) -> Any:
    """``x.sin()``, its backward by ``pull(x, g)``."""

    class Sine(fxforms.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return pull(ctx.saved_tensors[0], g)

    return Sine


def by_torch_backward() -> Any:
    @torch.enable_grad()
    def pull(x: Any, g: Any) -> Any:
        v = x.detach().requires_grad_()
        torch.autograd.backward(v.sin(), g)
        return v.grad

    return pulled_by(pull)


def by_reentrant_checkpoint() -> Any:
    @torch.enable_grad()
    def pull(x: Any, g: Any) -> Any:
        v = x.detach().requires_grad_()
        checkpoint(torch.sin, v, use_reentrant=True).backward(g)
        return v.grad

    return pulled_by(pull)


def second_derivative_by_checkpoint() -> Any:
    x = X.clone().requires_grad_()
    y = by_reentrant_checkpoint().apply(x).sum()
    return torch.autograd.grad(y, x, create_graph=True)


class TestInnerAutograd(Messages):
    def test_autograd_grad_in_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(inner_grad)(BATCH),
            """\
UnsupportedError: vmap(inner_grad): Inside a transform, write fxforms.grad(g)(v)
in place of v.requires_grad_() with torch.autograd.grad(g(v), v) or
g(v).backward(); it gives the same numbers and composes.""",
        )

    def test_autograd_grad_by_a_captured_leaf(self) -> None:
        self.check(
            lambda: captured_leaf(X),
            """\
UnsupportedError: grad(<lambda>): Inside a transform, write fxforms.grad(g)(v)
in place of v.requires_grad_() with torch.autograd.grad(g(v), v) or
g(v).backward(); it gives the same numbers and composes.""",
        )

    def test_backward_in_grad(self) -> None:
        self.check(
            lambda: fxforms.grad(inner_backward)(X),
            """\
UnsupportedError: grad(inner_backward): Inside a transform, write
fxforms.grad(g)(v) in place of v.requires_grad_() with torch.autograd.grad(g(v),
v) or g(v).backward(); it gives the same numbers and composes.""",
        )

    def test_backward_in_jacfwd(self) -> None:
        self.check(
            lambda: fxforms.jacfwd(inner_backward)(X),
            """\
UnsupportedError: jacfwd(inner_backward): Inside a transform, write
fxforms.grad(g)(v) in place of v.requires_grad_() with torch.autograd.grad(g(v),
v) or g(v).backward(); it gives the same numbers and composes.""",
        )

    def test_a_rule_that_calls_backward_in_jvp(self) -> None:
        self.check(
            lambda: fxforms.jvp(by_torch_backward().apply, (X,), (X,)),
            """\
GradientError: Sine: a derivative rule calls the autograd engine by
torch.autograd.backward, through a reentrant checkpoint, or on a graph that
forward kept, and its own derivative is asked for: a second derivative, or
forward mode from backward. Build the graph in the rule and write
torch.autograd.grad(y, v, g), and use_reentrant=False in a checkpoint; it gives
the same numbers and can be differentiated.""",
        )

    def test_a_rule_that_goes_back_through_a_reentrant_checkpoint(self) -> None:
        self.check(
            second_derivative_by_checkpoint,
            """\
GradientError: Sine: a derivative rule calls the autograd engine by
torch.autograd.backward, through a reentrant checkpoint, or on a graph that
forward kept, and its own derivative is asked for: a second derivative, or
forward mode from backward. Build the graph in the rule and write
torch.autograd.grad(y, v, g), and use_reentrant=False in a checkpoint; it gives
the same numbers and can be differentiated.""",
        )

    def test_requires_grad_in_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(lambda x: x.requires_grad_())(BATCH),
            """\
UnsupportedError: vmap(<lambda>): Inside a transform, write fxforms.grad(g)(v)
in place of v.requires_grad_() with torch.autograd.grad(g(v), v) or
g(v).backward(); it gives the same numbers and composes.""",
        )

    def test_an_argument_that_was_turned_off(self) -> None:
        self.check(
            lambda: fxforms.grad(turned_off)(X),
            """\
UnsupportedError: grad(turned_off): requires_grad_(False) inside the function
turned the derivative by its argument off. Write x.detach() where the argument
is meant as a constant.""",
        )

    def test_retain_grad(self) -> None:
        self.check(
            lambda: fxforms.grad(retained)(X),
            """\
UnsupportedError: grad(retained): Inside a transform no tensor has a .grad. For
the gradient of an intermediate, g(x) in h(g(x)), write fxforms.grad(h)(g(x)).""",
        )

    def test_forward_mode_in_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(forward_mode)(BATCH),
            """\
UnsupportedError: vmap(forward_mode): Inside a transform, write fxforms.jvp(g,
(v,), (t,)) in place of forward_ad.make_dual(v, t); it gives the same numbers
and composes.""",
        )

    def test_numpy_in_grad(self) -> None:
        self.check(
            lambda: fxforms.grad(by_numpy)(X),
            """\
UnsupportedError: grad(by_numpy): NumPy and C code cannot read a tensor that a
transform follows. Put them into forward of an fxforms.Function, which gets
plain tensors. (allow_mutation_on_saved_tensors is such code.)""",
        )


class TestHooks(Messages):
    def test_a_tensor_hook_in_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(hooked)(BATCH),
            """\
UnsupportedError: vmap(hooked): A hook sees gradients of fxforms.grad or vjp:
register it inside the function that they differentiate, on a tensor that
depends on its argument.""",
        )

    def test_a_hook_on_several_gradients(self) -> None:
        self.check(
            lambda: fxforms.grad(hooked_together)(X),
            """\
UnsupportedError: grad(hooked_together): A hook on several gradients needs
.backward(), which no transform calls. Register one on each tensor with
y.register_hook.""",
        )

    def test_save_on_cpu_in_vmap_of_grad(self) -> None:
        self.check(
            lambda: fxforms.vmap(fxforms.grad(offloaded))(BATCH),
            """\
UnsupportedError: grad(offloaded): Under vmap the unpack hook of
saved_tensors_hooks must return what pack returned, which that of save_on_cpu
does not: torch takes the data of anything else. Compute in pack alone.""",
        )

    def test_data_in_vmap(self) -> None:
        self.check(
            lambda: fxforms.vmap(lambda x: x.data)(BATCH),
            """\
UnsupportedError: vmap(<lambda>): Under vmap, write x.detach() in place of
x.data.""",
        )

    def test_data_in_a_hook_in_vmap_of_grad(self) -> None:
        def read(x: Tensor) -> Tensor:
            y = x.sin()
            y.register_hook(lambda g: g.data)
            return (y * x).sum()

        self.check(
            lambda: fxforms.vmap(fxforms.grad(read))(BATCH),
            """\
UnsupportedError: grad(read): Under vmap, write x.detach() in place of x.data.""",
        )


REFUSED: dict[Callable[[Tensor], Any], tuple[str, ...]] = {
    inner_grad: ("vmap", "jvp", "grad_vmap"),
    captured_leaf: ("vmap", "jvp", "grad", "vmap_grad", "grad_vmap", "grad_grad"),
    inner_backward: ("vmap", "jvp", "grad", "vmap_grad", "grad_vmap", "grad_grad"),
    turned_off: ("vmap", "grad", "vmap_grad", "grad_grad"),
    retained: ("vmap", "jvp", "grad", "vmap_grad", "grad_vmap", "grad_grad"),
    hooked: ("vmap", "jvp", "grad_vmap"),
    hooked_together: ("grad", "vmap_grad", "grad_grad"),
    offloaded: ("vmap_grad", "grad_grad"),
    forward_mode: ("vmap", "jvp", "grad_vmap"),
    by_numpy: ("vmap", "jvp", "grad", "vmap_grad", "grad_vmap", "grad_grad"),
}
RUN: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: fxforms.vmap(f)(BATCH),
    "jvp": lambda f: fxforms.jvp(f, (X,), (X,)),
    "grad": lambda f: fxforms.grad(f)(X),
    "vmap_grad": lambda f: fxforms.vmap(fxforms.grad(f))(BATCH),
    "grad_vmap": lambda f: fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(BATCH),
    "grad_grad": lambda f: fxforms.grad(lambda x: fxforms.grad(f)(x).sum())(X),
}


@pytest.mark.parametrize(
    ("f", "run"),
    [(f, name) for f, names in REFUSED.items() for name in names],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_nested_or_not_the_error_names_the_function(f: Callable[..., Any], run: str) -> None:
    with pytest.raises(UnsupportedError, match=f.__name__ if f is not captured_leaf else "lambda"):
        RUN[run](f)
