"""The combined form ``forward(ctx, *args)``: what may be left on ``ctx``, to third order."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from combined_cases import OPAQUE, RANDOM, RIGHT, Sine
from hidden_cases import HIDDEN
from oracle import vec
from torch import Tensor
from torch.testing import assert_close
from unary import FIRST_ORDER, PROGRAMS, SECOND_ORDER, all_of, check, function, loss, rows

import fxforms
from fxforms.errors import GradientError

VALUES = ["number", "numpy array", "storage", "memory"]


@pytest.mark.parametrize(("case", "program"), all_of(RIGHT))
def test_a_form_of_ctx(case: str, program: str) -> None:
    check(program, *RIGHT[case])


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize(("case", "program"), all_of(HIDDEN, SECOND_ORDER))
def test_a_residual_out_of_sight_is_no_silent_zero(case: str, program: str) -> None:
    """Right, or an error that names the Function."""
    try:
        check(program, HIDDEN[case], torch.sin)
    except GradientError as error:
        seen = str(error)
    else:
        return
    assert "Hidden" in seen


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize("case", HIDDEN)
@pytest.mark.parametrize("program", FIRST_ORDER)
def test_a_residual_out_of_sight_does_for_the_first_derivative(case: str, program: str) -> None:
    check(program, HIDDEN[case], torch.sin)


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize(
    ("case", "program"),
    all_of(
        ["tolist", "numpy tensor", *VALUES],
        ["vmap", "grad", "jvp", "vmap_grad", "grad_vmap"],
    ),
)
def test_first_derivatives_of_a_body_that_leaves_torch(case: str, program: str) -> None:
    check(program, *OPAQUE[case])


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize(
    ("case", "program"),
    all_of(["tolist", "numpy tensor"], SECOND_ORDER),
)
def test_second_derivatives_of_a_body_that_leaves_torch(case: str, program: str) -> None:
    """No right value exists: an error that names Function and residual."""
    op, _ = OPAQUE[case]
    with pytest.raises(GradientError, match=r"Opaque: .*second derivative .*residuals"):
        PROGRAMS[program](fxforms, op, vec(3))


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize(("case", "program"), all_of(VALUES, SECOND_ORDER))
def test_second_derivatives_of_values_on_ctx(case: str, program: str) -> None:
    op, _ = OPAQUE[case]
    with pytest.raises(GradientError, match=r"Opaque.* second derivative"):
        PROGRAMS[program](fxforms, op, vec(3))


def test_a_hidden_tensor_that_is_a_constant_is_no_fault() -> None:
    """Only what depends on the inputs has a derivative to miss."""
    factor = vec(3)
    op = function(
        "Scaled",
        forward=lambda ctx, x: setattr(ctx, "kept", {factor}) or x * factor,
        backward=lambda ctx, g: g * next(iter(ctx.kept)),
    )
    for program in PROGRAMS:
        check(program, op.apply, lambda x: x * factor)


@pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_body_that_branches_on_values(program: str) -> None:
    check(program, *OPAQUE["branch"])


@pytest.mark.parametrize(
    ("case", "program"),
    all_of(RANDOM, ["grad", "jvp", "grad_grad", "jvp_grad", "grad_jvp", "jvp_jvp"]),
)
def test_a_forward_that_draws_numbers(case: str, program: str) -> None:
    """The derivative is that of the call made: the same numbers throughout."""
    noise = []

    def op(x: Tensor) -> Tensor:
        output, drawn = RANDOM[case].apply(x)
        noise[:] = noise or [drawn.detach()]
        return output

    x = vec(3)
    actual = PROGRAMS[program](fxforms, op, x)
    drawn = torch.func.debug_unwrap(noise[0], recurse=True)
    plain = lambda x: (drawn * x).sin()  # noqa: E731
    oracle.assert_trees_close(actual, PROGRAMS[program](oracle, plain, x))


def test_a_loop_over_a_forward_that_draws_numbers() -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(x, noise)
        return x**2 * noise

    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, noise = ctx.saved_tensors
        return 2 * g * x * noise

    op = function("Noisy", forward=forward, backward=backward, vmap_method="loop").apply
    with pytest.raises(GradientError, match=r"Noisy is called once .* draws random numbers"):
        fxforms.vmap(fxforms.hessian(loss(op)), randomness="different")(rows(vec(3)))


def test_dirty_residuals_have_no_second_derivative() -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.cosine = x.cos()
        return x.sin_()

    op = function("InPlace", forward=forward, backward=lambda ctx, g: g * ctx.cosine)
    check("vmap_grad", lambda x: op.apply(x * 1), torch.sin)
    with pytest.raises(GradientError, match=r"InPlace.*overwritten"):
        fxforms.hessian(lambda x: op.apply(x * 1).sum())(vec(3))


@pytest.mark.parametrize("program", ["grad", "jvp", "vmap_grad", "grad_vmap"])
def test_an_input_that_is_returned_and_saved(program: str) -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x

    op = function("Returned", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    half_square = lambda x: op.apply(x).sum()  # noqa: E731
    x, X = vec(3), vec(2, 3)
    actual, expected = {
        "grad": lambda: (fxforms.grad(half_square)(x), x),
        "jvp": lambda: (fxforms.jvp(half_square, (x,), (x,))[1], (x * x).sum()),
        "vmap_grad": lambda: (fxforms.vmap(fxforms.grad(half_square))(X), X),
        "grad_vmap": lambda: (fxforms.grad(lambda X: fxforms.vmap(op.apply)(X).sum())(X), X),
    }[program]()
    assert_close(actual, expected)


def test_plain_autograd_twice_through_a_vmap() -> None:
    x = vec(3).requires_grad_()
    (first,) = torch.autograd.grad(fxforms.vmap(Sine.apply)(rows(x)).sum(), x, create_graph=True)
    assert_close(
        torch.autograd.grad((first * x).sum(), x),
        torch.autograd.grad(
            (torch.autograd.grad(rows(x).sin().sum(), x, create_graph=True)[0] * x).sum(), x
        ),
    )


def test_plain_autograd_twice_through_a_grad() -> None:
    x = vec(3).requires_grad_()
    first = fxforms.vmap(fxforms.grad(loss(Sine.apply)))(rows(x))
    expected = fxforms.vmap(fxforms.grad(loss(torch.sin)))(rows(x))
    assert_close(
        torch.autograd.grad(first.pow(2).sum(), x), torch.autograd.grad(expected.pow(2).sum(), x)
    )


def test_no_transform_no_change() -> None:
    """The user's own ctx, node and saved tensors, as torch makes them."""
    seen = []

    def forward(ctx: Any, x: Tensor) -> Tensor:
        seen.append(type(ctx).__name__)
        ctx.save_for_backward(x.cos())
        return x.sin()

    op = function("Mine", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    x = vec(3).requires_grad_()
    y = op.apply(x)
    assert y.grad_fn.name() == "MineBackward"
    assert seen == ["MineBackward"]
    assert_close(y.grad_fn.saved_tensors, (x.detach().cos(),))
    y.sum().backward()
    assert_close(x.grad, x.detach().cos())


def test_numpy_with_a_saved_output_has_every_derivative() -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(output)
        return output

    op = function("Exp", forward=forward, backward=lambda ctx, g: g * ctx.saved_tensors[0])
    for program in SECOND_ORDER:
        if "vmap" not in program:
            check(program, op.apply, torch.exp)
    with pytest.warns(fxforms.UnmappableWarning, match="Exp"):
        check("vmap_grad_grad", op.apply, torch.exp)
