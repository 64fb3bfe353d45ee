"""torch's operators as entries: samples, wrappers, capabilities, and that checks run on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from opinfo_db import Capability, OpInfo
from opinfo_db.checks import BY_NAME
from opinfo_db.checks.contract import CheckFailure, cases, run_check, tensors_of
from opinfo_db.checks.transforms import FXFORMS
from opinfo_db.core import ALL_CAPABILITIES, SampleInput
from opinfo_db.torch_ops import differentiable_ops, torch_ops

CPU = torch.device("cpu")
FLOAT = torch.float32
OPS = {entry.name: entry for entry in torch_ops()}


def samples(entry: OpInfo, dtype: torch.dtype = FLOAT, grad: bool = True) -> list[SampleInput]:
    torch.manual_seed(0)
    return list(entry.sample_inputs(CPU, dtype, grad))


def test_every_operator_is_there_once() -> None:
    assert len(OPS) == len(torch_ops()) > 600
    assert {"sin", "matmul", "nn.functional.conv2d", "linalg.svd", "div.floor_rounding"} <= set(OPS)


def test_all_samples_are_there() -> None:
    shapes = {tuple(tensors_of(sample)[0].shape) for sample in samples(OPS["cumsum"])}
    assert {(), (5, 5, 5)} <= shapes
    assert len(samples(OPS["nn.functional.conv2d"])) > 10


def test_samples_require_grad_if_asked() -> None:
    for grad in (True, False):
        (first, *_) = samples(OPS["mul"], grad=grad)
        assert [x.requires_grad for x in tensors_of(first)] == [grad, grad]


def test_indices_do_not_require_grad() -> None:
    (first, *_) = samples(OPS["gather"])
    assert [x.requires_grad for x in tensors_of(first)] == [True, False]


@pytest.mark.parametrize("name", ["sin", "cross_entropy", "svd"])
def test_samples_repeat_under_one_seed(name: str) -> None:
    entry = next(entry for full, entry in OPS.items() if full.endswith(name))
    for one, other in zip(samples(entry), samples(entry), strict=True):
        pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
        assert pairs
        assert all(torch.equal(a, b) for a, b in pairs)


def test_the_call_is_the_operator() -> None:
    for sample in samples(OPS["atan2"], torch.float64):
        y, x = tensors_of(sample)
        torch.testing.assert_close(
            OPS["atan2"].call(*sample.args, **sample.kwargs), torch.angle(torch.complex(x, y))
        )


def test_the_wrapper_symmetrizes() -> None:
    """Only the symmetric part of the input counts, so the derivative exists."""
    entry = OPS["linalg.cholesky"]
    sample = next(s for s in samples(entry, torch.float64) if not s.kwargs["upper"])
    (x,) = tensors_of(sample)
    skew = torch.triu(torch.ones_like(x), 1)
    factor = entry.call(*sample.args, **sample.kwargs)
    other = entry.call(x + skew - skew.mT, **sample.kwargs)
    torch.testing.assert_close(other, factor)
    torch.testing.assert_close(factor @ factor.mT, x + x.mT)


def test_outputs_that_are_not_unique_are_made_so() -> None:
    """The sign of an eigenvector is open; what the entry returns does not depend on it."""
    entry = OPS["linalg.eigh"]
    (sample, *_) = samples(entry, torch.float64)
    matrix = (tensors_of(sample)[0] + tensors_of(sample)[0].mT).detach()
    values, vectors = entry.call(*sample.args, **sample.kwargs)
    expected_values, expected_vectors = torch.linalg.eigh(matrix)
    torch.testing.assert_close(values.detach(), expected_values)
    torch.testing.assert_close(vectors.detach(), expected_vectors.abs())


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("sin", set()),
        ("cdist", ALL_CAPABILITIES - {Capability.VMAP, Capability.BACKWARD}),
        ("argmax", ALL_CAPABILITIES - {Capability.VMAP}),
    ],
)
def test_what_torch_declares_is_supported(name: str, missing: set[Capability]) -> None:
    assert ALL_CAPABILITIES - OPS[name].supports == missing


def test_the_differentiable_operators_of_a_dtype() -> None:
    names = {entry.name for entry in differentiable_ops(FLOAT)}
    assert len(names) > 500
    assert "sin" in names
    assert not names & {"argmax", "bitwise_and"}


@pytest.mark.parametrize("name", ["nn.functional.dropout", "normal", "bernoulli"])
def test_random_operators_are_known(name: str) -> None:
    assert OPS[name].random


def test_other_operators_are_not_random() -> None:
    assert not any(OPS[name].random for name in ("sin", "matmul", "sort", "linalg.svd"))


@pytest.mark.parametrize("check", ["forward", "vjp", "jvp", "vmapvjp", "jvpvjp"])
@pytest.mark.parametrize("name", ["cumsum", "linalg.cholesky", "nn.functional.gelu"])
def test_checks_run_on_them(check: str, name: str) -> None:
    (case, *_) = cases(BY_NAME[check], OPS[name], torch.float64)
    assert run_check(BY_NAME[check], case, FXFORMS).assertions > 0


def test_a_wrong_derivative_is_caught() -> None:
    def wrong(x: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return x.detach().sin() + x * 0.1 - x.detach() * 0.1

    entry = replace(OPS["sin"], op=wrong)
    (case, *_) = cases(BY_NAME["vjp"], entry, torch.float64)
    with pytest.raises(CheckFailure, match="finite differences"):
        run_check(BY_NAME["vjp"], case, FXFORMS)
