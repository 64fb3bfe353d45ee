"""Compiled passes beside others in the process: threads, captures, torch's own, transforms."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from capture_graphs import leaf
from compilers import Counter

import fxforms
from fxforms.staging.backward import engine


def test_blocks_of_several_threads() -> None:
    wrong: list[float] = []

    def work() -> None:
        for _ in range(20):
            x = leaf(4)
            with fxforms.compiled_backward(Counter()):
                (x.sin() * x).sum().backward()
            wanted = (x.cos() * x + x.sin()).detach()
            if not torch.allclose(x.grad, wanted):
                wrong.append(0)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work) for _ in range(6)]:
            done.result()
    assert not wrong


def test_a_capture_between_compiled_passes() -> None:
    x = leaf(3)
    counter = Counter()
    for _ in range(2):
        x.grad = None
        with fxforms.compiled_backward(counter):
            y = x.sin().sum()
            found = fxforms.capture_backward(y)()
            assert x.grad is None
            y.backward()
        torch.testing.assert_close(x.grad, x.cos().detach())
        torch.testing.assert_close(found, [x.cos()])
    assert counter.count == 1


def test_beside_torchs_own_compiled_autograd() -> None:
    def run() -> torch.Tensor:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (x.sin() * x).sum().backward()
        return x.grad

    wanted = run()
    counter = Counter()
    warnings.simplefilter("ignore")  # torch's own capture reads .grad of every tensor
    for _ in range(2):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            torch.testing.assert_close(run(), wanted)
        with fxforms.compiled_backward(counter):
            torch.testing.assert_close(run(), wanted)


def test_inside_a_transform() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with fxforms.compiled_backward():
            return x.sin()

    with pytest.raises(fxforms.errors.UnsupportedError, match="inside a transform"):
        fxforms.grad(f)(torch.tensor(1.0))


def test_programs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_PROGRAMS", engine._kept + 3)
    counter = Counter()
    x = leaf(3)
    for powers in (1, 2, 3, 4, 5, 1):
        y = x
        for _ in range(powers):
            y = y.sin()
        with fxforms.compiled_backward(counter):
            torch.autograd.grad(y.sum(), x)
    assert counter.count == 6  # the first was forgotten by the time it came again


class Cube(fxforms.Function):
    """``x**3``."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


def f(x: torch.Tensor) -> torch.Tensor:
    """A function with slope :func:`slope` and curvature :func:`curvature`."""
    return (x.sin() * Cube.apply(x)).sum()


def slope(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * x**3 + 3 * x.sin() * x**2


def curvature(x: torch.Tensor) -> torch.Tensor:
    return -x.sin() * x**3 + 6 * x.cos() * x**2 + 6 * x.sin() * x


TRANSFORMS = {
    "grad": lambda x: (fxforms.grad(f)(x), slope(x)),
    "vmap(grad)": lambda x: (fxforms.vmap(fxforms.grad(f))(torch.stack([x])), slope(x)[None]),
    "grad(vmap)": lambda x: (fxforms.grad(lambda x: fxforms.vmap(f)(x).sum())(x), slope(x)),
    "grad(grad)": lambda x: (fxforms.vmap(fxforms.grad(fxforms.grad(f)))(x), curvature(x)),
    "jvp(grad)": lambda x: (
        fxforms.jvp(fxforms.grad(f), (x,), (torch.ones_like(x),))[1],
        curvature(x),
    ),
    "hessian": lambda x: (fxforms.hessian(f)(x), torch.diag(curvature(x))),
    "jacrev": lambda x: (fxforms.jacrev(fxforms.grad(f))(x), torch.diag(curvature(x))),
    "batched": lambda x: (
        torch.autograd.grad(
            Cube.apply(y := x.clone().requires_grad_()), y, torch.diag(x), is_grads_batched=True
        )[0],
        torch.diag(3 * x**3),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside_a_block(name: str) -> None:
    x = leaf(3).detach()
    for _ in range(2):
        with fxforms.compiled_backward(Counter()):
            found, wanted = TRANSFORMS[name](x)
        torch.testing.assert_close(found, wanted)


def test_a_pass_through_a_transform() -> None:
    x = leaf(3)
    for _ in range(2):
        x.grad = None
        with fxforms.compiled_backward(Counter()):
            fxforms.grad(f)(x).sum().backward()
        torch.testing.assert_close(x.grad, curvature(x).detach())
