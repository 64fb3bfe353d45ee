"""The adapter over torch's private layer."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from fxforms import _substrate as substrate
from fxforms._torch_version import check_torch_version
from fxforms.interpreters import current_interpreter, grad_level, jvp_level, vmap_level


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu", "2.13.0a0+git"])
def test_supported_versions(version: str) -> None:
    check_torch_version(version)


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0", "3.0.0", "1.13.1+cu117"])
def test_an_unknown_version_is_named_with_the_supported_ones(version: str) -> None:
    with pytest.raises(ImportError) as error:
        check_torch_version(version)
    assert version in str(error.value)
    assert "2.13" in str(error.value)


def test_wrapping_for_grad_and_back() -> None:
    x = torch.ones(3)
    with grad_level() as level:
        leaf = substrate.make_leaf(x, level)
        assert substrate.level_of(leaf) == level == 1
        assert leaf.requires_grad
        assert substrate.unwrap_for_grad(leaf, level) is x
    assert not x.requires_grad
    assert substrate.unwrap_if_dead(leaf) is x


def test_batch_dims() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with vmap_level(3, "error") as level:
        sample = substrate.add_batch_dim(x, 1, level)
        assert sample.shape == (2,)
        value, dim = substrate.unwrap_batched(sample, level)
        assert value is x
        assert dim == 1
        out = substrate.take_batch_dim(sample * 2, level, 3, 0)
    assert torch.equal(out, 2 * x.T)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_a_tensor_without_a_batch_is_repeated(dim: int) -> None:
    x = torch.arange(3.0)
    with vmap_level(3, "error") as level:
        out = substrate.take_batch_dim(x, level, 3, dim)
    assert torch.equal(out, torch.stack([x, x, x], dim))


def test_duals() -> None:
    x, t = torch.ones(3), torch.full((3,), 2.0)
    with jvp_level() as level:
        dual = substrate.make_dual(x, t)
        assert substrate.level_of(dual) == level
        tangent = substrate.tangent_of(dual * 3)
        assert tangent is not None
        assert substrate.unwrap_for_grad(tangent, level).tolist() == [6.0] * 3
        assert substrate.tangent_of(substrate.wrap_for_grad(x, level)) is None


def test_the_dual_level_is_open_for_the_outermost_jvp_alone() -> None:
    with jvp_level():
        with jvp_level():
            pass
        with pytest.raises(RuntimeError, match="Nested forward mode"):
            forward_ad.enter_dual_level()
    with forward_ad.dual_level():
        with jvp_level():
            pass
        assert forward_ad.unpack_dual(
            forward_ad.make_dual(torch.ones(2), torch.ones(2))
        ).tangent.tolist() == [1.0, 1.0]


def test_backward_gives_none_for_an_input_without_influence() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    gradients = substrate.run_backward([(x * 2).sum()], [torch.tensor(1.0)], [x, y], False, False)
    assert gradients[0] is not None
    assert gradients[0].tolist() == [2.0, 2.0]
    assert gradients[1] is None


def test_backward_in_inference_mode_keeps_the_modes() -> None:
    x = torch.ones(2, requires_grad=True)
    y = (x * x).sum()
    with torch.inference_mode():
        before = torch.is_grad_enabled(), substrate.forward_grad_enabled()
        (gradient,) = substrate.run_backward([y], [torch.tensor(1.0)], [x], False, False)
        assert (torch.is_grad_enabled(), substrate.forward_grad_enabled()) == before
    assert gradient is not None
    assert gradient.tolist() == [2.0, 2.0]


def test_a_change_in_place_is_seen_under_every_wrapper() -> None:
    plain = torch.ones(2, 3)
    with vmap_level(2, "error") as outer, grad_level() as level:
        batch = substrate.add_batch_dim(plain, 0, outer)
        wrapped = substrate.wrap_for_grad(batch, level)
        before = substrate.versions((wrapped, batch, plain, 3))
        with current_interpreter().lower():  # as a body does
            batch.mul_(2)
        after = substrate.versions((wrapped, batch, plain, 3))
    assert [b - a for a, b in zip(before, after)] == [1, 1, 1]
    assert torch.equal(plain, torch.full((2, 3), 2.0))
