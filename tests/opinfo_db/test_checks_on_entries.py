"""All checks pass on right operations of every kind that the helper code has to handle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import make_tensor

import fxforms
from opinfo_db import ALL_CAPABILITIES, Capability, OpInfo, SampleInput
from opinfo_db.checks import CHECKS
from opinfo_db.checks.contract import Check, CheckFailure, capable, cases, run_check
from opinfo_db.checks.transforms import FXFORMS, TORCH_FUNC, Transforms
from opinfo_db.core import DERIVATIVES, roll_values

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

ONE = (torch.float64,)
COMPLEX = (torch.complex128, torch.complex64)


def sampler(*make: Callable[..., SampleInput]) -> Callable[..., Iterator[SampleInput]]:
    """Sample inputs from functions of a tensor maker."""

    def samples(device: Any, dtype: torch.dtype, requires_grad: bool) -> Iterator[SampleInput]:
        def tensor(*shape: int, dtype: torch.dtype = dtype, grad: bool = True) -> Tensor:
            grad = grad and requires_grad
            return make_tensor(
                shape, dtype=dtype, device=device, low=0.5, high=2, requires_grad=grad
            )

        for one in make:
            yield one(tensor)

    return samples


X = sampler(lambda t: SampleInput((t(3),)))


class OnceOnly(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t * ctx.saved_tensors[0]

    @staticmethod
    @fxforms.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class RoundStraightThrough(fxforms.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return t.clone()


ENTRIES = [
    OpInfo(
        "index",
        lambda x, index, dim: x.gather(dim, index),
        sampler(lambda t: SampleInput((t(2, 3), torch.tensor([[0, 2], [1, 1]])), {"dim": 1})),
    ),
    OpInfo(
        "mask",
        lambda mask, x, y: torch.where(mask, x, y),
        sampler(lambda t: SampleInput((torch.tensor([True, False]), t(2), t(2, grad=False)))),
    ),
    OpInfo(
        "sort",
        lambda x: tuple(x.sort(-1)),
        sampler(lambda t: SampleInput((t(5),))),
        vary=roll_values,
    ),
    OpInfo(
        "pytree",
        lambda p, scale: {"a": (p["w"] * p["b"][0], p["n"] + 1), "b": p["w"].sin() * scale},
        sampler(lambda t: SampleInput(({"w": t(3), "b": [t(3)], "n": torch.arange(3)}, 2.0))),
        dtypes=ONE,
    ),
    OpInfo(
        "other_leaves",
        lambda x, name: (x.sin(), name, 3, None),
        sampler(lambda t: SampleInput((t(3), "label"))),
        supports=ALL_CAPABILITIES - {Capability.VMAP},
        dtypes=ONE,
    ),
    OpInfo(
        "unused_input",
        lambda x, y: x * x,
        sampler(lambda t: SampleInput((t(3), t(2)))),
        dtypes=ONE,
    ),
    OpInfo(
        "linear_so_no_second_derivative",
        lambda x, y: (2 * x, y.sum()),
        sampler(lambda t: SampleInput((t(3), t(2)))),
        dtypes=ONE,
    ),
    OpInfo(
        "complex",
        lambda x, y: (x.conj() * y * x, (x * y).abs()),
        sampler(lambda t: SampleInput((t(3), t(3)))),
        dtypes=COMPLEX,
    ),
    OpInfo(
        "expanded",
        lambda x, y: x.sin() * y,
        sampler(lambda t: SampleInput((t(1).detach().expand(3).requires_grad_(), t(3)))),
        # torch's forward mode refuses a primal with overlapping memory.
        supports=frozenset({Capability.BACKWARD, Capability.DOUBLE_BACKWARD, Capability.VMAP}),
        dtypes=ONE,
    ),
    OpInfo("complex_to_real", lambda x: (x * x).imag, X, dtypes=COMPLEX),
    OpInfo(
        "real_to_complex",
        lambda x, y: torch.complex(x * y, y.sin()),
        sampler(lambda t: SampleInput((t(3), t(3)))),
        dtypes=ONE,
    ),
    OpInfo(
        "shapes",
        lambda x, y: x.sin() * y,
        sampler(
            lambda t: SampleInput((t(), t()), name="scalars"),
            lambda t: SampleInput((t(0, 2), t(2)), name="empty"),
            lambda t: SampleInput((t(2, 3).t().detach().requires_grad_(), t(2)), name="transposed"),
        ),
        dtypes=ONE,
    ),
    OpInfo(
        "dropout",
        lambda x: torch.nn.functional.dropout(x * x, 0.5),
        sampler(lambda t: SampleInput((t(40),))),
        random=True,
        dtypes=ONE,
    ),
    OpInfo(
        "half", lambda x: x * x, X, dtypes=(torch.float16, torch.bfloat16), reference=lambda x: x**2
    ),
    OpInfo(
        "integers",
        lambda x: x + 1,
        sampler(lambda t: SampleInput((torch.arange(4),))),
        dtypes=(torch.int64,),
        reference=lambda x: 1 + x,
    ),
    OpInfo(
        "no_derivative", lambda x: x > 1, X, supports=ALL_CAPABILITIES - DERIVATIVES, dtypes=ONE
    ),
    OpInfo(
        "once_only",
        OnceOnly,
        X,
        supports=frozenset({Capability.BACKWARD, Capability.JVP, Capability.VMAP}),
    ),
    OpInfo(
        "straight_through",
        RoundStraightThrough,
        X,
        reference=lambda x: x + (x.round() - x).detach(),
        finite_differences=False,
    ),
]
PLAIN_TORCH = [e for e in ENTRIES if not isinstance(e.op, type)]
PAIRS = [(FXFORMS, e) for e in ENTRIES] + [(TORCH_FUNC, e) for e in PLAIN_TORCH]


# torch.func.vmap with a negative out_dims on an output that is not batched reads past the sizes of
# the tensor: it raises, or returns a shape of random numbers.
TORCH_FAULT = ("out_dims", {"pytree", "unused_input", "linear_so_no_second_derivative"})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize(("transforms", "entry"), PAIRS, ids=lambda v: v.name)
def test_all_checks_pass(
    transforms: Transforms, entry: OpInfo, check: Check, request: pytest.FixtureRequest
) -> None:
    name, faulty = TORCH_FAULT
    if transforms is TORCH_FUNC and check.name == name and entry.name in faulty:
        mark = pytest.mark.xfail(raises=CheckFailure, reason="vmap(out_dims=-1) in torch.func")
        request.applymarker(mark)
    done = 0
    for dtype in entry.dtypes:
        for case in cases(check, entry, dtype):
            done += run_check(check, case, transforms).assertions
    able = any(capable(check, entry, dtype) for dtype in entry.dtypes)
    noiseless = check.name == "randomness" and entry.name == "integers"
    assert (done > 0) == (able and check.name != "errors" and not noiseless)
