"""What a failing trace says: the function, the user's line, and nothing on stderr."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxforms import errors, grad
from fxforms import jit as staged


def jit(f: Callable[..., Any]) -> Any:
    return staged(f, backend="eager")


def mismatched(x: Tensor) -> Tensor:
    y = x.sin()
    return y @ torch.ones(4)


@pytest.mark.parametrize("wrap", [lambda f: f, grad])
def test_a_shape_error_names_function_and_line(wrap: Any, capfd: Any) -> None:
    with pytest.raises(errors.TraceError) as caught:
        jit(wrap(mismatched))(torch.ones(3))
    assert str(caught.value).startswith("jit of mismatched: ")
    line = mismatched.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}: return y @ torch.ones(4): inconsistent" in str(caught.value)
    assert type(caught.value.__cause__) is RuntimeError
    assert "failed while attempting to run meta" not in "".join(capfd.readouterr())


def test_torch_logs_outside_of_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = list(logger.filters)
    with pytest.raises(errors.TraceError):
        jit(mismatched)(torch.ones(3))
    assert logger.filters == before


def test_errors_of_the_user_and_other_types_pass() -> None:
    def raising(x: Tensor) -> Tensor:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$") as caught:
        jit(raising)(torch.ones(3))
    assert type(caught.value) is RuntimeError
    with pytest.raises(IndexError):
        jit(lambda x: x.sum(5))(torch.ones(3))


def test_a_tensor_as_an_index() -> None:
    x, i = torch.arange(3.0), torch.tensor(1)
    with pytest.raises(errors.TraceError, match="index_select"):
        jit(lambda x, i: x[i])(x, i)
    assert jit(lambda x, i: x.index_select(0, i).squeeze(0))(x, i) == 1


def test_a_layer_that_reads_a_value_is_named() -> None:
    layer = nn.BatchNorm1d(3, momentum=None)
    with pytest.raises(errors.TraceError) as caught:
        jit(layer)(torch.randn(4, 3))
    assert __file__ in str(caught.value)
    assert "(in torch/nn/modules/batchnorm.py): float()" in str(caught.value)


def test_a_long_line_is_cut() -> None:
    f = lambda x: [x.sin() if x.sum().item() > 0 else x.cos() for _ in range(10) for _ in range(10)][-1]  # noqa: E501, E731 # fmt: skip
    with pytest.raises(errors.TraceError) as caught:
        jit(f)(torch.ones(3))
    line = str(caught.value).split(": item()")[0].split(f"{__file__}:")[1]
    assert line.endswith("...")
    assert len(line) < 120


def test_a_jitted_function_is_copied() -> None:
    layer = jit(nn.Linear(2, 2))
    x = torch.ones(1, 2)
    before = layer(x)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        layer._function.weight.zero_()
    assert torch.equal(other(x), before)
    assert not torch.equal(layer(x), before)
    assert other.cache_info().misses == 1
