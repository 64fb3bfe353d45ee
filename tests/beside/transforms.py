"""The rows on transforms, and on torch's features inside them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from beside import TORCH_FUNC, X, row
from fxforms.functions import checkpoints


@row("an argument that escaped from one `vmap`, used in the next")
def escaped(library: Any) -> None:
    kept: list[torch.Tensor] = []
    library.vmap(lambda x: (kept.append(x), x)[1])(X)
    raised = False
    try:
        library.vmap(lambda y: y + kept[0])(torch.zeros(2))
    except RuntimeError:
        raised = True
    assert raised


@row("`requires_grad_()` on another tensor inside a transform")
def own_leaf(library: Any) -> None:
    def f(x):
        return (x * x * torch.ones_like(X).requires_grad_()).sum()

    assert torch.allclose(library.grad(f)(X), 2 * X)


@row("`grad` under saved-tensor hooks (`save_on_cpu`)")
def saved_tensor_hooks(library: Any) -> None:
    with torch.autograd.graph.save_on_cpu():
        gradient = library.grad(lambda x: x.sin().sin())(X[0])
    assert torch.allclose(gradient, X[0].sin().cos() * X[0].cos())


@row("`torch.compile` around `grad` of a Function")
def compiled(library: Any) -> None:
    class StraightThrough(library.Function):
        @staticmethod
        def forward(x):
            return torch.round(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * cotangent

    gradient = library.grad(lambda x: StraightThrough.apply(x).sum())
    assert torch.equal(torch.compile(gradient, backend="eager")(X), torch.full_like(X, 3))


@row("`jvp` in several threads at once")
def threads(library: Any) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(50):
                _, tangent = library.jvp(torch.sin, (X,), (X,))
                assert torch.allclose(tangent, X.cos() * X)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors, errors[0]


@row("`hvp`, and `value_and_grad` in JAX order")
def extras(library: Any) -> None:
    _, (product,) = library.hvp(lambda x: (x**3).sum(), (X,), (X,))
    assert torch.allclose(product, 6 * X * X)
    value, gradient = library.value_and_grad(torch.sin)(X[0])
    assert torch.allclose(torch.stack([value, gradient]), torch.stack([X[0].sin(), X[0].cos()]))


@row("batch sizes that differ")
def batch_sizes(library: Any) -> None:
    with pytest.raises(ValueError, match="size") as caught:
        library.vmap(lambda d, y: d["a"] + y)({"a": torch.ones(3)}, torch.ones(4))
    assert "args[0]['a'] has size 3" in str(caught.value)
    assert "args[1] has size 4" in str(caught.value)


@row("`torch.utils.checkpoint` inside `grad`")
def torch_checkpoint(library: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if library is TORCH_FUNC:  # what importing fxforms changed
            name = "torch.utils.checkpoint._checkpoint_without_reentrant_generator"
            patch.setattr(name, checkpoints._generator)
        gradient = library.vmap(
            library.grad(lambda x: checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False))
        )(X)
    assert torch.allclose(gradient, X.cos() * X.sin().exp())
