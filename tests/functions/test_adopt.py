"""``adopt`` and ``adopt_all``: Functions of others, unedited, under transforms."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.autograd.function import InplaceFunction, once_differentiable
from torch.testing import assert_close
from unary import PROGRAMS, check, rows

import fxforms
from fxforms import adopt, adopt_all
from fxforms.errors import GradientError

APPLY = torch.autograd.Function.__dict__["apply"].__func__
ORIGINAL = APPLY.__code__


class Theirs(torch.autograd.Function):
    """In the combined form, with a residual."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float = 1.0) -> Tensor:
        ctx.save_for_backward(scale * x.cos())
        return scale * x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.saved_tensors[0] * g, None


captured_at_import = Theirs.apply


class TheirsFunctional(torch.autograd.Function):
    """In the functional form, with a jvp alone."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return ctx.saved_tensors[0].cos() * t


class TheirsInPlace(InplaceFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was() -> Any:
    yield
    left = APPLY.__code__
    APPLY.__code__ = ORIGINAL
    assert left is ORIGINAL


@pytest.mark.parametrize("program", PROGRAMS)
def test_adopt(program: str) -> None:
    check(program, adopt(Theirs).apply, torch.sin)
    check(program, adopt(TheirsFunctional).apply, torch.sin)


@pytest.mark.parametrize("program", PROGRAMS)
def test_adopt_all(program: str) -> None:
    with adopt_all():
        check(program, lambda x: Theirs.apply(x, 2.0), lambda x: 2 * x.sin())
        check(program, TheirsFunctional.apply, torch.sin)


def test_adopt_all_by_a_call() -> None:
    before = torch.autograd.Function.__dict__["apply"]
    session = adopt_all()
    check("vmap_grad_grad", Theirs.apply, torch.sin)
    session.__exit__(None, None, None)
    assert torch.autograd.Function.__dict__["apply"] is before


def test_an_in_place_function() -> None:
    def double(x: Tensor) -> Tensor:
        y = x * 1
        adopt(TheirsInPlace).apply(y)
        return y

    for program in ("vmap", "grad", "vmap_grad", "grad_vmap", "jvp"):
        check(program, double, lambda x: 2 * x)


def test_once_differentiable_of_torch() -> None:
    class Once(Theirs):
        backward = staticmethod(once_differentiable(Theirs.backward))

    check("vmap_grad", adopt(Once).apply, torch.sin)
    with pytest.raises(GradientError, match=r"Once\.backward is marked once_differentiable"):
        fxforms.hessian(lambda x: adopt(Once).apply(x).sum())(vec(3))


def test_what_adopt_returns() -> None:
    adopted = adopt(Theirs)
    assert adopted is adopt(Theirs)
    assert issubclass(adopted, Theirs)
    assert issubclass(adopted, fxforms.Function)
    assert adopted.__name__ == "Theirs"
    assert adopted.__module__ == Theirs.__module__
    assert adopt(adopted) is adopted
    assert not hasattr(Theirs, "_rules")


@pytest.mark.parametrize("wrong", [3, print, torch.nn.Linear, Theirs.apply])
def test_adopt_takes_a_function_class(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"adopt expects a subclass of torch\.autograd\.Function"):
        adopt(wrong)


def test_adopt_all_changes_nothing_outside_transforms() -> None:
    x = vec(3).requires_grad_()
    with adopt_all():
        y = Theirs.apply(x)
    assert y.grad_fn.name() == "TheirsBackward"
    assert_close(torch.autograd.grad(y.sum(), x)[0], x.detach().cos())


def test_adopt_all_ends_with_its_block() -> None:
    with pytest.raises(KeyError), adopt_all():
        raise KeyError
    with pytest.raises(RuntimeError, match="setup_context"):
        fxforms.grad(lambda x: Theirs.apply(x).sum())(vec(3))


def test_blocks_inside_each_other() -> None:
    with adopt_all():
        with adopt_all():
            check("vmap_grad", Theirs.apply, torch.sin)
        check("vmap_grad", Theirs.apply, torch.sin)


def test_blocks_that_end_in_another_order() -> None:
    first, second = adopt_all(), adopt_all()
    first.__exit__(None, None, None)
    check("vmap_grad", Theirs.apply, torch.sin)  # the second still holds
    second.__exit__(None, None, None)
    assert APPLY.__code__ is ORIGINAL


def test_an_apply_that_was_taken_before() -> None:
    """``relu = TheirRelu.apply`` in a module is how most packages export a Function."""
    with adopt_all():
        check("vmap_grad", captured_at_import, torch.sin)


class Overridden(Theirs):
    """Changes what ``apply`` is given."""

    @classmethod
    def apply(cls, x: Tensor) -> Tensor:
        return super().apply(2 * x)


def test_an_apply_of_the_class_itself() -> None:
    check("vmap_grad", adopt(Overridden).apply, lambda x: (2 * x).sin())


def test_an_apply_of_the_class_itself_under_adopt_all() -> None:
    with adopt_all():
        check("vmap_grad", Overridden.apply, lambda x: (2 * x).sin())


def test_adopt_all_serves_every_thread() -> None:
    results = []

    def work() -> None:
        results.append(
            fxforms.vmap(fxforms.grad(lambda x: Theirs.apply(x).sum()))(rows(torch.ones(3)))
        )

    with adopt_all():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 4
    for result in results:
        assert_close(result, rows(torch.ones(3)).cos())


def test_an_adopted_class_is_collected() -> None:
    class Local(Theirs):
        pass

    check("grad", adopt(Local).apply, torch.sin)
    reference = weakref.ref(Local)
    del Local
    gc.collect()
    assert reference() is None


def test_a_module_of_theirs() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0).double())

        def forward(self, x: Tensor) -> Tensor:
            return Theirs.apply(x * self.scale).sum()

    layer, X = Layer(), vec(4, 3)
    weights = {"scale": layer.scale.detach()}
    loss = lambda w, x: fxforms.functional_call(layer, w, (x,))  # noqa: E731
    with adopt_all():
        per_sample = fxforms.vmap(fxforms.grad(loss), (None, 0))(weights, X)
    assert_close(per_sample["scale"], (X * (2 * X).cos()).sum(1))
