"""``save`` and ``load``: a compiled function in a file, run in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fxforms
from fxforms import errors, grad, jit, jvp, vmap

RUN = """
import sys, torch, fxforms
f = fxforms.load(sys.argv[1])
result = f({"x": torch.tensor([0.5, 1.0, 2.0])}, 3.0)
print(result["slope"].tolist())
"""


def test_another_process_runs_the_file(tmp_path: Path) -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])

    def f(d: dict[str, torch.Tensor], factor: float) -> dict[str, Any]:
        return {"slope": grad(lambda x: factor * (weight * x**2).sum())(d["x"])}

    path = tmp_path / "f.pt2"
    fxforms.save(f, path, {"x": torch.ones(3)}, 3.0)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3.0, 12.0, 36.0]"


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="there is no file"):
        fxforms.load(tmp_path / "none.pt2")


def test_what_a_file_cannot_hold_is_told(tmp_path: Path) -> None:
    path = tmp_path / "f.pt2"
    with pytest.raises(errors.TraceError, match="changes tensors in place"):
        fxforms.save(lambda x: x.add_(1), path, torch.ones(2))
    with pytest.raises(errors.TraceError, match="calls Python"):
        fxforms.save(lambda x: fxforms.pure_callback(torch.sin, x, x), path, torch.ones(2))
    assert not path.exists()


def scaled(d: dict[str, torch.Tensor], factor: float, mode: str) -> dict[str, Any]:
    return {"noisy": factor * d["x"] + torch.rand(2, 3), "same": d["x"], "mode": (mode, None, 2)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``scaled`` from a file."""
    path = tmp_path_factory.mktemp("saved") / "scaled.pt2"
    fxforms.save(scaled, path, {"x": torch.ones(2, 3)}, 2.0, "a")
    return fxforms.load(path)


def test_a_loaded_function_gives_the_values_of_its_source(loaded: Callable[..., Any]) -> None:
    x = torch.arange(6.0).reshape(3, 2).t()  # other strides than were saved
    torch.manual_seed(3)
    found = loaded({"x": x}, 2.0, "a")
    torch.manual_seed(3)
    torch.testing.assert_close(found["noisy"], 2 * x + torch.rand(2, 3))
    assert torch.equal(found["same"], x)
    assert found["mode"] == ("a", None, 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (({"x": torch.ones(2, 2)}, 2.0, "a"), r"args\[0\]\['x'\] is .* of shape \(2, 2\)"),
        (({"x": torch.ones(5, 3)}, 2.0, "a"), r"saved for a torch.float32 .* \(2, 3\)"),
        (({"x": torch.ones(2, 3).double()}, 2.0, "a"), r"is a torch.float64 tensor"),
        (({"x": torch.ones(2, 3).to_sparse()}, 2.0, "a"), r"torch.sparse_coo"),
        (({"x": torch.ones(2, 3, device="meta")}, 2.0, "a"), r"on meta"),
        (({"x": 1.0}, 2.0, "a"), r"args\[0\]\['x'\] is 1.0"),
        (({"x": torch.ones(2, 3)}, 3.0, "a"), r"args\[1\] is 3.0, and it was saved for 2.0"),
        (({"x": torch.ones(2, 3)}, 2, "a"), r"args\[1\] is 2, and it was saved for 2.0"),
        (({"x": torch.ones(2, 3)}, 2.0, "b"), r"args\[2\] is 'b', and it was saved for 'a'"),
        (({"y": torch.ones(2, 3)}, 2.0, "a"), r"structure \(\{'x': \*\}, \*, \*\)"),
        (({"x": torch.ones(2, 3)}, 2.0), r"was given \(\{'x': \*\}, \*\)"),
    ],
)
def test_other_arguments_are_told(
    loaded: Callable[..., Any], args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(errors.ArgumentError, match=message):
        loaded(*args)


def test_what_follows_a_loaded_function_is_told(loaded: Callable[..., Any]) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return loaded({"x": x}, 2.0, "a")["same"]

    x = torch.ones(2, 3)
    follows = "a transform follows its arguments"
    with pytest.raises(errors.ArgumentError, match=follows):
        vmap(call)(x.expand(4, 2, 3))
    with pytest.raises(errors.ArgumentError, match=follows):
        grad(lambda x: call(x).sum())(x)
    with pytest.raises(errors.ArgumentError, match=follows):
        jvp(call, (x,), (x,))
    with pytest.raises(errors.ArgumentError, match="while jit traces"):
        jit(call, backend="eager")(x)
    with pytest.raises(errors.ArgumentError, match="while jit traces"):
        jit(lambda y: y + call(x), backend="eager")(x)
    with pytest.raises(errors.ArgumentError, match=r"args\[0\]\['x'\] requires grad"):
        call(x.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(call(x.clone().requires_grad_()), x)
    with pytest.raises(errors.ArgumentError, match="no keyword argument"):
        loaded({"x": x}, 2.0, mode="a")


def test_values_that_a_file_cannot_tell_are_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "f.pt2", torch.ones(2)
    with pytest.raises(errors.ArgumentError, match=r"args\[1\] is a frozenset"):
        fxforms.save(lambda x, n: x, path, x, frozenset([1]))
    with pytest.raises(errors.ArgumentError, match="returns a frozenset"):
        fxforms.save(lambda x: (x, frozenset([1])), path, x)
    assert not path.exists()
