"""A body that cannot be mapped: a loop with one warning a class, or as ``vmap_method`` says."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import PROGRAMS, check, function, rows

import fxforms
from fxforms.errors import RuleError

IGNORED = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")


def numpy_sine(form: str = "functional", **more: Any) -> Any:
    """A new class: ``sin`` by NumPy, its derivative in torch."""

    def value(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return value(x)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    methods: dict[str, Any] = {"forward": forward}
    if form == "functional":
        methods = {"forward": value, "setup_context": setup_context}
    methods["backward"] = lambda ctx, g: g * ctx.saved_tensors[0].cos()
    return function("NumpySine", **methods | more)


def caught(run: Any) -> list[str]:
    """The texts of the UnmappableWarnings of ``run()``."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in seen if w.category is fxforms.UnmappableWarning]


@pytest.mark.parametrize("form", ["functional", "combined"])
def test_one_warning_a_class(form: str) -> None:
    op = numpy_sine(form).apply
    x, X = vec(3), vec(4, 3)

    def run() -> None:
        for _ in range(2):
            assert_close(fxforms.vmap(op)(X), X.sin())
            assert_close(fxforms.vmap(fxforms.grad(lambda x: op(x).sum()))(X), X.cos())
            assert_close(fxforms.grad(lambda X: fxforms.vmap(op)(X).sum())(X), X.cos())
            fxforms.vmap(fxforms.vmap(op))(rows(X))
            fxforms.vmap(fxforms.jacfwd(op))(X)
            fxforms.hessian(lambda x: op(x).sum())(x)

    texts = caught(run)
    assert len(texts) == 1
    assert texts[0].startswith("NumpySine cannot be mapped over a batch (")
    assert "vmap rule" in texts[0]
    assert 'vmap_method = "loop"' in texts[0]
    assert len(caught(lambda: fxforms.vmap(numpy_sine().apply)(X))) == 1  # another class


def test_a_body_that_can_be_mapped_is_not_warned_of() -> None:
    op = function(
        "Sine",
        forward=lambda ctx, x: ctx.save_for_backward(x) or x.sin(),
        backward=lambda ctx, g: g * ctx.saved_tensors[0].cos(),
    )
    assert (
        caught(lambda: fxforms.vmap(fxforms.hessian(lambda x: op.apply(x).sum()))(vec(2, 3))) == []
    )


@pytest.mark.parametrize("form", ["functional", "combined"])
def test_loop_is_accepted_in_silence(form: str) -> None:
    op = numpy_sine(form, vmap_method="loop").apply
    X = vec(4, 3)
    assert caught(lambda: assert_close(fxforms.vmap(op)(X), X.sin())) == []
    for program in ("vmap", "vmap_grad", "grad_vmap", "vmap_grad_grad", "vmap_jvp"):
        check(program, op, torch.sin)


def test_loop_also_where_the_body_could_be_mapped() -> None:
    shapes = []

    def forward(x: Tensor) -> Tensor:
        shapes.append((type(x), tuple(x.shape)))
        return x * 2

    op = function(
        "Double",
        forward=forward,
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, g: 2 * g,
        vmap_method="loop",
    )
    X = vec(4, 3)
    assert_close(fxforms.vmap(op.apply)(X), 2 * X)
    assert shapes == [(Tensor, (3,))] * 4


@pytest.mark.parametrize("form", ["functional", "combined"])
def test_error_refuses_to_derive(form: str) -> None:
    op = numpy_sine(form, vmap_method="error").apply
    with pytest.raises(RuleError, match=r'NumpySine.*vmap_method = "error"'):
        fxforms.vmap(op)(vec(4, 3))
    check("grad_grad", op, torch.sin)


@pytest.mark.parametrize("form", ["functional", "combined"])
def test_error_refuses_to_derive_between_two_levels(form: str) -> None:
    op = numpy_sine(form, vmap_method="error").apply
    with pytest.raises(RuleError, match=r'NumpySine.*vmap_method = "error"'):
        fxforms.grad(lambda X: fxforms.vmap(op)(X).sum())(vec(4, 3))


def test_a_vmap_rule_comes_before_the_method() -> None:
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return torch.sin(x), in_dims[0]

    for method in ("derive", "loop", "error"):
        op = numpy_sine(vmap=vmap, vmap_method=method).apply
        X = vec(4, 3)
        assert caught(lambda op=op, X=X: assert_close(fxforms.vmap(op, 1)(X), X.T.sin())) == []


@IGNORED
def test_an_empty_batch() -> None:
    op = numpy_sine().apply
    with pytest.raises(RuleError, match=r"NumpySine .*batch of size 0.*vmap rule"):
        fxforms.vmap(op)(torch.empty(0, 3))
    assert_close(fxforms.vmap(op)(vec(1, 3)).shape, torch.Size([1, 3]))


@IGNORED
@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 0), (-1, 1)], ids=str)
def test_where_the_batch_is(dims: Any) -> None:
    op = function(
        "NumpyDot",
        forward=lambda ctx, x, y, k: (
            ctx.save_for_backward(x, y) or torch.from_numpy(k * x.detach().numpy() * y.numpy())
        ),
        backward=lambda ctx, g: (3 * g * ctx.saved_tensors[1], 3 * g * ctx.saved_tensors[0], None),
    )
    x, y = [vec(3) if d is None else vec(3, 3) for d in dims]
    run = lambda x, y: op.apply(x, y.detach(), 3)  # noqa: E731
    expected = lambda x, y: 3 * x * y  # noqa: E731
    assert_close(fxforms.vmap(run, dims)(x, y), fxforms.vmap(expected, dims)(x, y))
    grad = lambda f: fxforms.grad(lambda x: fxforms.vmap(f, dims)(x, y).pow(2).sum())(x)  # noqa: E731
    assert_close(grad(run), grad(expected))


@IGNORED
def test_two_loops_inside_each_other() -> None:
    op = numpy_sine().apply
    X = vec(2, 3, 4)
    nested = lambda f: fxforms.vmap(fxforms.vmap(f, 1), 2, 1)  # noqa: E731
    assert_close(nested(op)(X), nested(torch.sin)(X))


def backward_by_numpy(**more: Any) -> Any:
    """A forward that can be mapped, a backward that cannot."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return torch.from_numpy(np.cos(ctx.saved_tensors[0].detach().numpy())) * g

    return function(
        "BackwardByNumpy",
        forward=lambda x: x.sin(),
        setup_context=setup_context,
        backward=backward,
        **more,
    )


@IGNORED
@pytest.mark.parametrize("method", ["derive", "loop"])
@pytest.mark.parametrize("program", ["vmap", "grad", "grad_vmap", "vmap_grad"])
def test_a_backward_that_cannot_be_mapped(method: str, program: str) -> None:
    check(program, backward_by_numpy(vmap_method=method).apply, torch.sin)


def test_a_backward_that_cannot_be_mapped_warns_once() -> None:
    op = backward_by_numpy().apply
    X = vec(4, 3)
    grad = lambda: fxforms.grad(lambda X: fxforms.vmap(op)(X).sum())(X)  # noqa: E731
    assert caught(lambda: fxforms.vmap(op)(X)) == []  # forward alone is mapped
    assert len(caught(grad)) == 1
    assert caught(grad) == []
    assert_close(grad(), X.cos())


DIRECT = ("vmap", "grad", "grad_vmap", "vmap_grad")


@IGNORED
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in DIRECT])
def test_the_derivative_of_a_backward_by_numpy(program: str) -> None:
    """There is none, and the error says whose."""
    with pytest.raises(fxforms.errors.GradientError, match=r"BackwardByNumpy: .*leaves torch"):
        PROGRAMS[program](fxforms, backward_by_numpy().apply, vec(3))


@IGNORED
def test_a_python_output_that_differs_by_sample() -> None:
    """A number cannot be batched: an error, for the first sample's is wrong for the others."""
    op = function(
        "Total",
        forward=lambda ctx, x: (x * 2, float(x.sum())),
        backward=lambda ctx, g, _: 2 * g,
    )
    with pytest.raises(RuleError, match="Total"):
        fxforms.vmap(lambda x: x * op.apply(x)[1])(vec(4, 3))


@IGNORED
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_body_that_fills_a_tensor_of_its_own(program: str) -> None:
    """A solver does so: the tensor has no batch, and each sample gets its own in a loop."""

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        path = torch.empty(2, 3, dtype=x.dtype)
        path[0] = x
        path[1] = path[0].sin()
        ctx.save_for_backward(x)
        return path[1]

    op = function("Path", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0].cos())
    check(program, op.apply, torch.sin)


def test_a_fault_of_the_body_is_no_reason_to_loop() -> None:
    calls = []

    def forward(ctx: Any, x: Tensor) -> Tensor:
        calls.append(1)
        raise RuntimeError("out of luck")

    op = function("Unlucky", forward=forward, backward=lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="out of luck"):
        fxforms.vmap(op.apply)(vec(4, 3))
    assert len(calls) == 1


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_in_a_loop(randomness: str) -> None:
    op = function(
        "Noisy",
        forward=lambda ctx, x: x + torch.rand_like(x),
        backward=lambda ctx, g: g,
        vmap_method="loop",
    )
    drawn = fxforms.vmap(op.apply, randomness=randomness)(torch.zeros(3, 2))
    assert bool((drawn[0] == drawn[1]).all()) == (randomness == "same")


@IGNORED
def test_a_batch_that_cannot_be_mapped_after_one_that_could() -> None:
    """What is known of the first batch does not make the second look changed in place."""
    op = function(
        "Sometimes",
        forward=lambda ctx, x, by_value: x * float(x.sum()) if by_value else x * 2,
        backward=lambda ctx, g: (g, None),
    )
    x = vec(4, 3)
    for _ in range(2):
        assert_close(fxforms.vmap(lambda x: op.apply(x, False))(x), 2 * x)
    expected = x * x.sum(1, keepdim=True)
    assert_close(fxforms.vmap(lambda x: op.apply(x, True))(x), expected)
