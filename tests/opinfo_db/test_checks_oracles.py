"""The oracles themselves, against closed forms: what they say is what a failure rests on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opinfo_db import OpInfo, SampleInput
from opinfo_db.checks import differences, in_dims, oracle
from opinfo_db.checks.compare import inner
from opinfo_db.checks.contract import Case, OracleError
from opinfo_db.checks.contract import oracle as running_oracle
from opinfo_db.checks.differences import Step
from opinfo_db.checks.flat import Fun, problem
from opinfo_db.checks.forward import spread
from opinfo_db.checks.levels import depth

F64 = torch.float64
CPU = torch.device("cpu")


def fun(call: Any, n_in: int, n_out: int = 1) -> Fun:
    """All inputs and outputs differentiable."""
    return Fun(call, n_in, n_out, tuple(range(n_in)), tuple(range(n_out)))


CUBE = fun(lambda x, y: (x**3 * y,), 2)
X, Y, G = torch.tensor([2.0], dtype=F64), torch.tensor([3.0], dtype=F64), torch.tensor([5.0])


def test_vjp_and_jvp_of_a_cube() -> None:
    g = G.double()
    value, gx, gy = oracle.vjp_of(CUBE).call(X, Y, g)
    assert (value.item(), gx.item(), gy.item()) == (24, 180, 40)
    for autograd in (True, False):
        value, pushed = oracle.jvp_of(CUBE, autograd).call(X, Y, X, Y)
        assert value.item() == 24
        assert pushed.item() == pytest.approx(36 * 2 + 8 * 3, rel=1e-8)


def test_second_derivatives_of_a_cube() -> None:
    g, zero = torch.ones(1, dtype=F64), torch.zeros(1, dtype=F64)
    twice = oracle.vjp_of(oracle.vjp_of(CUBE))
    *_, gxx, gxy, gxg = twice.call(X, Y, g, zero, g, zero)
    assert (gxx.item(), gxy.item(), gxg.item()) == (36, 12, 36)
    hessian_product = oracle.jvp_of(oracle.vjp_of(CUBE), True)
    *_, hx, hy = hessian_product.call(X, Y, g, g, zero, zero)
    assert (hx.item(), hy.item()) == (36, 12)


def test_jvp_in_single_precision_without_a_double_backward_is_widened() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * g

    once = fun(lambda x: (Once.apply(x),), 1)
    x = torch.tensor([2.0])
    for autograd in (True, False):
        _, pushed = oracle.jvp_of(once, autograd).call(x, torch.ones(1))
        assert pushed.dtype == torch.float32
        assert pushed.item() == pytest.approx(12, rel=1e-6)


def test_an_unused_input_and_a_constant_output_have_zero_derivatives() -> None:
    odd = fun(lambda x, y: (x * 2, torch.ones(2, dtype=F64)), 2, 2)
    inputs = (torch.ones(3, dtype=F64), torch.ones(2, dtype=F64))
    *_, gx, gy = oracle.vjp_of(odd).call(*inputs, torch.ones(3), torch.ones(2))
    assert gx.tolist() == [2, 2, 2]
    assert gy.tolist() == [0, 0]


def test_complex_derivatives_are_those_of_the_real_inner_product() -> None:
    z, w = torch.tensor([1 + 2j]), torch.tensor([3 - 1j])
    square = fun(lambda z: ((z * z),), 1)
    _, grad = oracle.vjp_of(square).call(z, w)
    assert grad.item() == (2 * z.conj() * w).item()
    _, pushed = oracle.jvp_of(square, True).call(z, w)
    assert pushed.item() == (2 * z * w).item()
    absolute = fun(lambda z: ((z * z.conj()).real,), 1)  # not holomorphic
    one = torch.ones(1)
    _, grad = oracle.vjp_of(absolute).call(z, one)
    assert grad.item() == (2 * z).item()
    _, pushed = oracle.jvp_of(absolute, True).call(z, w)
    assert pushed.item() == 2 * (z.conj() * w).real.item()
    assert inner(z, w) == (z.conj() * w).real.item()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.permutations(["vjp", "jvp", "vmap"]), st.booleans())
def test_projections_agree_with_autograd_in_each_order(
    seed: int, kinds: list[str], complex_values: bool
) -> None:
    torch.manual_seed(seed)
    dtype = torch.complex128 if complex_values else F64
    base = fun(lambda x, y: (x.sin() * y, (x * y * y).sum(-1)), 2, 2)
    steps: list[Step] = []
    current = base
    shape = [2, 3] if "vmap" in kinds else [3]
    inputs = [torch.rand(shape, dtype=dtype) for _ in range(2)]
    for kind in reversed(kinds):
        steps.insert(0, Step(kind, current, (0,) * current.n_in))
        current = _wrap(kind, current)
        if kind != "vmap":
            inputs += _given(kind, steps[0].fun, inputs, mapped="vmap" in [s.kind for s in steps])
    with torch.no_grad():
        outputs = current.call(*inputs)
    weights = tuple(torch.randn(y.shape, dtype=dtype) for y in outputs)
    expected = sum(inner(w, y) for w, y in zip(weights, outputs, strict=True))
    actual = differences.projection(steps, base, tuple(inputs), weights)
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-5)


def _wrap(kind: str, current: Fun) -> Fun:
    """The oracle of ``kind`` around ``current``."""
    if kind == "vmap":
        return oracle.vmap_of(current, (0,) * current.n_in)
    return oracle.vjp_of(current) if kind == "vjp" else oracle.jvp_of(current, True)


def _given(kind: str, inside: Fun, inputs: list[Tensor], mapped: bool) -> list[Tensor]:
    """Cotangents or tangents, with the batch in front if a ``vmap`` is to come or was there."""
    if kind == "jvp":
        like = inputs
    elif mapped:
        like = list(inside.call(*inputs))
    else:
        rows = oracle.vmap_of(inside, (0,) * inside.n_in)
        like = list(rows.call(*inputs))
    return [torch.randn(x.shape, dtype=x.dtype) for x in like]


def test_a_loop_honours_in_dims_and_out_dims() -> None:
    x, y = torch.arange(6.0).view(2, 3), torch.arange(2.0)
    scaled = fun(lambda x, y: (x * y.sum(),), 2)
    (rows,) = oracle.vmap_of(scaled, (0, 0)).call(x, y)
    assert rows.tolist() == [[0, 0, 0], [3, 4, 5]]
    (columns,) = oracle.vmap_of(scaled, (-1, None), -1).call(x, y)
    assert columns.tolist() == x.tolist()


def test_choices_are_all_choices_of_up_to_three_tensors() -> None:
    for count, number in ((1, 2), (2, 8), (3, 26)):
        found = in_dims.choices((torch.ones(1),) * count)
        assert len(set(found)) == len(found) == number
        assert (None,) * count not in found
    many = in_dims.choices((torch.ones(1),) * 6)
    assert len(many) == 26
    for place in range(6):
        assert {choice[place] for choice in many} == {0, -1, None}
    assert in_dims.choices(()) == ()


def sample(*args: Any, **kwargs: Any) -> Any:
    return lambda device, dtype, requires_grad: iter([SampleInput(args, kwargs)])


def pose(entry: OpInfo) -> Any:
    return problem(Case(entry, F64, CPU, 0, "sample0"))


def test_only_what_requires_grad_is_differentiable_and_all_tensors_are_inputs() -> None:
    x, index = torch.ones(3, dtype=F64, requires_grad=True), torch.tensor([0, 2])
    data = {"x": x, "index": index, "scale": 2.0}
    entry = OpInfo(
        "pick",
        lambda d, *, frozen: (d["index"], d["x"][d["index"]] * d["scale"] + frozen, "text"),
        sample(data, frozen=torch.ones(2, dtype=F64)),
    )
    posed = pose(entry)
    assert [t.dtype for t in posed.inputs] == [F64, torch.int64, F64]
    assert not any(t.requires_grad for t in posed.inputs)
    assert (posed.op.n_in, posed.op.n_out) == (3, 2)
    assert (posed.op.diff_in, posed.op.diff_out) == ((0,), (1,))
    assert posed.op.call(*posed.inputs)[1].tolist() == [3, 3]


def test_a_reference_says_which_outputs_are_differentiable() -> None:
    x = torch.ones(3, dtype=F64, requires_grad=True)
    entry = OpInfo("sin", lambda x: x.detach().sin(), sample(x), torch.sin)
    assert pose(entry).op.diff_out == (0,)


def test_a_random_op_draws_the_same_numbers_each_time() -> None:
    entry = OpInfo("noise", torch.rand_like, sample(torch.ones(9)), random=True)
    posed = pose(entry)
    assert torch.equal(posed.op.call(*posed.inputs)[0], posed.op.call(*posed.inputs)[0])


def test_a_sample_is_the_same_each_time_and_leaves_the_generator_alone() -> None:
    def draw(device: Any, dtype: Any, requires_grad: bool) -> Any:
        yield SampleInput((torch.rand(3),))
        yield SampleInput((torch.rand(3),))

    case = Case(OpInfo("x", torch.sin, draw), F64, CPU, 1, "sample1")
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first, second = case.sample().args[0], case.sample().args[0]
    assert torch.equal(first, second)
    assert torch.equal(torch.rand(1), expected)


def test_spread_tensors_have_equal_values_and_other_strides() -> None:
    for x in (torch.rand(2, 3), torch.arange(4), torch.tensor(1.0), torch.rand(0, 2)):
        other = spread(x)
        assert torch.equal(other, x)
        assert x.numel() < 2 or not other.is_contiguous()


def test_depth_counts_levels() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(depth())
        return x.sum()

    torch.func.vmap(torch.func.grad(look))(torch.ones(2, 3))
    assert (seen, depth()) == ([2], 0)


def test_what_the_oracle_raises_is_its_own_fault() -> None:
    with (
        pytest.raises(OracleError, match="the loop: ZeroDivisionError"),
        running_oracle("the loop"),
    ):
        raise ZeroDivisionError
