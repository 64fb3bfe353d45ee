"""Each row of the README's table "Beside torch.func" is true of the torch that is installed.

A row's probe runs on both libraries. On fxforms it passes; on torch.func it fails in the way that
the table says: "wrong value" (its assertion fails), "error" (something else is raised), "absent"
(the name is not there).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from markdown_blocks import ROOT

import fxforms

Library = ModuleType | SimpleNamespace
Probe = Callable[[Any], None]

TORCH_FUNC = SimpleNamespace(Function=torch.autograd.Function, **vars(torch.func))
X = torch.tensor([0.5, -1.25], dtype=torch.float64)
PROBES: dict[str, Probe] = {}


def row(what: str) -> Callable[[Probe], Probe]:
    """Make a function the probe of the row that begins with ``what``."""

    def register(probe: Probe) -> Probe:
        PROBES[what] = probe
        return probe

    return register


def cube(library: Any) -> Any:
    """``x**3`` with the three rules."""

    class Cube(library.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * ctx.saved_tensors[0] ** 2 * cotangent

        @staticmethod
        def jvp(ctx, tangent):
            return 3 * ctx.saved_tensors[0] ** 2 * tangent

    return Cube


@row("`jacfwd(jacfwd(f))` through a Function with a `jvp` rule")
def forward_over_forward(library: Any) -> None:
    apply = cube(library).apply
    second = library.jacfwd(library.jacfwd(lambda x: apply(x).sum()))(X)
    assert torch.allclose(second, torch.diag(6 * X))


@row("second derivative of a `once_differentiable` backward")
def once_differentiable(library: Any) -> None:
    class Sine(library.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0].cos()

    try:
        second = library.grad(library.grad(Sine.apply))(X[0])
    except RuntimeError as error:
        assert "once_differentiable" in str(error)  # noqa: PT017
    else:
        assert torch.allclose(second, -X[0].sin())


@row("a sample that escaped from one `vmap`, used in the next")
def escaped(library: Any) -> None:
    kept: list[torch.Tensor] = []
    library.vmap(lambda x: (kept.append(x), x)[1])(X)
    raised = False
    try:
        library.vmap(lambda y: y + kept[0])(torch.zeros(2))
    except RuntimeError:
        raised = True
    assert raised


@row("`vmap(grad(f))` through a Function that uses `mark_dirty`")
def mark_dirty(library: Any) -> None:
    class Triple(library.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.mul_(3)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * cotangent

    gradient = library.vmap(library.grad(lambda x: Triple.apply(x.clone()) ** 2))(X)
    assert torch.allclose(gradient, 18 * X)


@row("`generate_vmap_rule` with a non-differentiable output")
def non_differentiable_output(library: Any) -> None:
    class Sort(library.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return torch.sort(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])

        @staticmethod
        def backward(ctx, cotangent, _):
            return torch.zeros_like(cotangent).scatter(0, ctx.saved_tensors[0], cotangent)

    rows = torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    gradient = library.vmap(library.grad(lambda x: Sort.apply(x)[0][-1]))(rows)
    assert torch.equal(gradient, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


@row("`linearize` through a Function without a `jvp` rule")
def linearize(library: Any) -> None:
    class Square(library.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0] * cotangent

    _, derivative = library.linearize(Square.apply, X)
    assert torch.allclose(derivative(torch.ones_like(X)), 2 * X)


@row("`requires_grad_()` on another tensor inside a transform")
def own_leaf(library: Any) -> None:
    def f(x):
        return (x * x * torch.ones_like(X).requires_grad_()).sum()

    assert torch.allclose(library.grad(f)(X), 2 * X)


@row("`grad` under saved-tensor hooks (`save_on_cpu`)")
def saved_tensor_hooks(library: Any) -> None:
    with torch.autograd.graph.save_on_cpu():
        gradient = library.grad(lambda x: x.sin().sin())(X[0])
    assert torch.allclose(gradient, X[0].sin().cos() * X[0].cos())


@row("`torch.compile` around `grad` of a Function")
def compiled(library: Any) -> None:
    class StraightThrough(library.Function):
        @staticmethod
        def forward(x):
            return torch.round(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * cotangent

    gradient = library.grad(lambda x: StraightThrough.apply(x).sum())
    assert torch.equal(torch.compile(gradient, backend="eager")(X), torch.full_like(X, 3))


@row("`jvp` in several threads at once")
def threads(library: Any) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(50):
                _, tangent = library.jvp(torch.sin, (X,), (X,))
                assert torch.allclose(tangent, X.cos() * X)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors[0]


@row("`hvp`, and `value_and_grad` in JAX order")
def extras(library: Any) -> None:
    _, (product,) = library.hvp(lambda x: (x**3).sum(), (X,), (X,))
    assert torch.allclose(product, 6 * X * X)
    value, gradient = library.value_and_grad(torch.sin)(X[0])
    assert torch.allclose(torch.stack([value, gradient]), torch.stack([X[0].sin(), X[0].cos()]))


@row("batch sizes that differ")
def batch_sizes(library: Any) -> None:
    with pytest.raises(ValueError, match="size") as caught:
        library.vmap(lambda d, y: d["a"] + y)({"a": torch.ones(3)}, torch.ones(4))
    assert "args[0]['a'] has size 3" in str(caught.value)
    assert "args[1] has size 4" in str(caught.value)


def table() -> dict[str, str]:
    """What the README says of torch.func, by row."""
    section = (ROOT / "README.md").read_text().split("## Beside torch.func")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+? \|$", section, re.MULTILINE)
    return dict(rows[1:])  # the first is the heading


def outcome(probe: Probe, library: Any) -> str:
    """How ``probe`` ends on ``library``, in the words of the table."""
    try:
        probe(library)
    except AttributeError:
        return "absent"
    except AssertionError as error:
        own = error.__traceback__.tb_next.tb_next is None
        return "wrong value" if own else "error"
    except Exception:
        return "error"
    return "right"


def test_each_row_has_a_probe() -> None:
    assert set(table()) == set(PROBES)


@pytest.mark.parametrize("what", PROBES)
def test_fxforms_is_right(what: str) -> None:
    PROBES[what](fxforms)


# Dynamo makes an instance of a Function class where it traces torch.func's grad.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("what", [what for what in PROBES if "threads" not in what])
def test_torch_func_does_as_the_table_says(what: str) -> None:
    assert outcome(PROBES[what], TORCH_FUNC) == table()[what].split(":")[0]
