"""What ``setup_context`` saves where the levels do not see it, in the functional form."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hidden_cases import HIDDEN_BY
from oracle import assert_trees_close, vec
from torch import Tensor
from unary import FIRST_ORDER, PROGRAMS, SECOND_ORDER, Op, all_of, check, function

import fxforms
from fxforms.errors import FxformsError, GradientError

pytestmark = pytest.mark.filterwarnings("ignore::fxforms.UnmappableWarning")


def sine(keep: Any, find: Any) -> Op:
    """``x.sin()``, whose ``setup_context`` keeps the cosine where ``find(ctx)`` finds it."""
    return function(
        "Kept",
        forward=lambda x: x.sin(),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "kept", keep(inputs[0])),
        backward=lambda ctx, g: g * find(ctx),
    ).apply


# Each beside whether its derivative can be followed.
CASES: dict[str, tuple[Op, bool]] = {
    **{name: (sine(*pair), True) for name, pair in HIDDEN_BY.items()},
    "numpy tensor": (
        sine(lambda x: torch.from_numpy(np.cos(x.detach().numpy())), lambda ctx: ctx.kept),
        False,
    ),
    "numpy array": (
        sine(lambda x: np.cos(x.detach().numpy()), lambda ctx: torch.from_numpy(ctx.kept)),
        False,
    ),
    "numbers": (
        sine(
            lambda x: [float(np.cos(v)) for v in x.tolist()],
            lambda ctx: torch.tensor(ctx.kept, dtype=torch.float64),
        ),
        False,
    ),
}


@pytest.mark.parametrize(("case", "program"), all_of(CASES, FIRST_ORDER))
def test_the_first_derivative(case: str, program: str) -> None:
    check(program, CASES[case][0], torch.sin)


@pytest.mark.parametrize(("case", "program"), all_of(CASES, SECOND_ORDER))
def test_higher_derivatives(case: str, program: str) -> None:
    """Right, or an error that names the Function."""
    op, in_torch = CASES[case]
    try:
        check(program, op, torch.sin)
    except GradientError as error:
        seen = str(error)
    else:
        assert in_torch
        return
    assert "Kept" in seen
    assert "second derivative" in seen


@pytest.mark.parametrize("program", ["grad", "jvp", "grad_grad", "jvp_grad", "grad_jvp", "jvp_jvp"])
def test_a_forward_that_runs_again_draws_the_same(program: str) -> None:
    """The noise is a non-differentiable output and saved: the first call finds that out."""
    noise = []

    def forward(x: Tensor) -> Any:
        noise.append(torch.randn(3, dtype=torch.float64))
        return noise[-1] * x, noise[-1]

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    op = function(
        "Noisy",
        forward=forward,
        setup_context=setup_context,
        backward=lambda ctx, g, _: g * ctx.saved_tensors[0],
    )
    x, state = vec(3), torch.get_rng_state()
    actual = PROGRAMS[program](fxforms, lambda x: op.apply(x)[0], x)
    torch.set_rng_state(state)
    drawn = vec(3)
    assert_trees_close(actual, PROGRAMS[program](oracle, lambda x: drawn * x, x))
    assert all(torch.equal(again, drawn) for again in noise)


def in_place(keep: Any) -> Op:
    """``2 * x`` in place, whose ``setup_context`` keeps ``keep(output)``; a class of its own."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.kept = keep(output)

    op = function(
        "Doubled",
        forward=lambda x: x.mul_(2),
        setup_context=setup_context,
        backward=lambda ctx, g: 2 * g * ctx.kept / ctx.kept,
    )
    return lambda x: op.apply(1 * x)


def _inferred(output: Tensor) -> Tensor:
    with torch.inference_mode():
        return output.sum()


KEPT_IN_PLACE = {"number": lambda output: output.sum().item(), "inference mode": _inferred}


@pytest.mark.parametrize("program", ["grad", "jvp"])
@pytest.mark.parametrize("case", KEPT_IN_PLACE)
def test_an_input_is_changed_once(case: str, program: str) -> None:
    """Though the first call finds out that the class hides something."""
    op = in_place(KEPT_IN_PLACE[case])
    for _ in range(3):
        check(program, op, lambda x: 2 * x)


@pytest.mark.parametrize("case", KEPT_IN_PLACE)
def test_a_second_derivative_of_what_an_overwritten_input_gave(case: str) -> None:
    op = in_place(KEPT_IN_PLACE[case])
    with pytest.raises(FxformsError, match="Doubled changed its input in place"):
        fxforms.hessian(lambda x: op(x).sin().sum())(vec(3))
