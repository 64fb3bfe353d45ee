"""The command line, run as a user runs it, and the parts of the demo against closed forms."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from fxforms import demo, grad, info
from fxforms.__main__ import main


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """``python -m fxforms ...`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fxforms", *args], capture_output=True, text=True, timeout=200
    )


def number(label: str, text: str) -> float:
    found = re.search(rf"^{label}\s+(\S+?)%?$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_the_demo_trains_and_its_gradients_are_those_of_a_loop() -> None:
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert number("test accuracy", done.stdout) > 95
    assert number("largest entry", done.stdout) > 0.1
    assert number("largest difference", done.stdout) < 1e-4
    assert "training: 100%" in done.stderr


def test_the_options_of_the_demo_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(seed: str) -> str:
        assert main(["demo", "--epochs", "1", "--batch-size", "500", "--seed", seed]) == 0
        out, err = capsys.readouterr()
        assert "3/3" in err  # steps: 1,438 samples, 500 in each
        return out

    first = printed("1")
    assert first == printed("1")
    assert first != printed("2")


def test_info_prints_versions_and_state() -> None:
    done = run("info")
    assert done.returncode == 0, done.stderr
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert facts["python"] == sys.version.split()[0]
    assert facts["torch"] == torch.__version__
    assert facts["active levels"] == "0"
    assert facts["grad mode"] == "on"


def test_info_shows_the_state_where_it_is_called() -> None:
    def count_levels(x: torch.Tensor) -> torch.Tensor:
        reports.append(info.report())
        return x

    reports: list[str] = []
    with torch.no_grad():
        reports.append(info.report())
    grad(grad(count_levels))(torch.tensor(1.0))
    assert re.search(r"^grad mode +off$", reports[0], re.MULTILINE)
    assert re.search(r"^active levels +2$", reports[1], re.MULTILINE)


@pytest.mark.parametrize("package", ["sklearn", "tqdm"])
def test_a_missing_package_is_named_with_the_extra(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # its import then fails
    assert main(["demo", "--epochs", "1"]) == 1
    assert "pip install 'fxforms[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the following arguments are required: command"),
        (["train"], "invalid choice: 'train'"),
        (["demo", "--epochs", "0"], "argument --epochs: expected 1 to 2**63 - 1, got 0"),
        (["demo", "--seed", "-1"], "argument --seed: expected 0 to 2**63 - 1, got -1"),
        (["demo", "--batch-size", "many"], "argument --batch-size: invalid integer value: 'many'"),
    ],
)
def test_a_wrong_command_line_is_explained(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "info" in shown
    assert "demo" in shown


def test_swish_has_the_derivative_of_its_formula() -> None:
    x = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(demo.Swish.apply, x)
    assert torch.autograd.gradgradcheck(demo.Swish.apply, x)


def test_a_clipped_mean_bounds_each_sample() -> None:
    grads = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([4.0, 0.4])}
    mean = demo.clipped_mean(grads)  # norms 5 and 0.5, the first cut to 1
    torch.testing.assert_close(mean["a"], torch.tensor([(0.6 + 0.3) / 2, 0.0]))
    torch.testing.assert_close(mean["b"], torch.tensor((0.8 + 0.4) / 2))


def test_a_wrong_gradient_shows_as_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    right = demo.Swish

    class Doubled(demo.Swish):
        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
            return 2 * right.backward(ctx, cotangent)

    generator = torch.Generator().manual_seed(0)
    params = demo.init_params(generator)
    x, y = torch.rand(4, 64, generator=generator), torch.tensor([0, 3, 5, 9])
    assert demo.compare(params, x, y)[1] < 1e-5
    monkeypatch.setattr(demo, "Swish", Doubled)
    assert demo.compare(params, x, y)[1] > 1e-3
