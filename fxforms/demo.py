"""The demo: a classifier of handwritten digits, trained on clipped gradients of single samples.

The data are scikit-learn's 1,797 digits of 8 x 8 pixels, which ship with that package. Clipping
each sample's gradient is the step of M. Abadi et al., "Deep Learning with Differential Privacy"
(2016), that needs per-sample gradients; no noise is added here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fxforms import Function, VmapInfo, grad_and_value, vmap
from fxforms.errors import FxformsError

HIDDEN = 64
CLIP_NORM = 1.0
LEARNING_RATE = 0.01
COMPARED_SAMPLES = 128

Params = dict[str, Tensor]


class MissingExtraError(FxformsError, ImportError):
    """A package of the extra ``demo`` is not installed."""


class Swish(Function):
    """``x * sigmoid(x)``, with a backward that keeps ``x`` alone and a batch rule of its own.

    Example:
        >>> Swish.apply(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.7311])
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return cotangent * s * (1 + x * (1 - s))

    @staticmethod
    def vmap(info: VmapInfo, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return Swish.apply(x), in_dims[0]


@dataclass(frozen=True)
class Digits:
    """Images ``[n, 64]`` in [0, 1] and labels ``[n]``, for training and for the test."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Result:
    """What the demo prints: shares of right answers, and the check of the gradients."""

    train_accuracy: float
    test_accuracy: float
    largest_gradient: float
    largest_difference: float

    def __str__(self) -> str:
        return (
            f"training accuracy  {self.train_accuracy:.2%}\n"
            f"test accuracy      {self.test_accuracy:.2%}\n"
            f"per-sample gradients, vmap(grad) beside a loop of plain autograd:\n"
            f"largest entry      {self.largest_gradient:.2e}\n"
            f"largest difference {self.largest_difference:.2e}"
        )


def load_digits(generator: torch.Generator) -> Digits:
    """scikit-learn's digits, shuffled: four fifths to train on, one fifth for the test."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise _missing_extra("scikit-learn") from error
    images, labels = datasets.load_digits(return_X_y=True)
    x = torch.as_tensor(images, dtype=torch.float32) / 16
    y = torch.as_tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(x), generator=generator)
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    return Digits(x[train], y[train], x[test], y[test])


def progress(steps: Iterator[Any], total: int) -> Any:
    """The steps, with a bar on standard error."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise _missing_extra("tqdm") from error
    return tqdm(steps, total=total, desc="training", unit="step")


def _missing_extra(package: str) -> MissingExtraError:
    """The error of a demo started without its packages."""
    return MissingExtraError(
        f"the demo needs {package}, which is not installed; the extra 'demo' brings it: "
        "pip install 'fxforms[demo]', or pip install -e '.[demo]' in a checkout"
    )


def init_params(generator: torch.Generator) -> Params:
    """Weights of a network 64 -> HIDDEN -> 10, scaled by the number of inputs."""
    return {
        "w1": torch.randn(HIDDEN, 64, generator=generator) / 8,
        "b1": torch.zeros(HIDDEN),
        "w2": torch.randn(10, HIDDEN, generator=generator) / HIDDEN**0.5,
        "b2": torch.zeros(10),
    }


def logits(params: Params, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Scores of the ten classes: ``[..., 64] -> [..., 10]``."""
    hidden = activation(functional.linear(x, params["w1"], params["b1"]))
    return functional.linear(hidden, params["w2"], params["b2"])


def sample_loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of one sample, by the custom Function."""
    return functional.cross_entropy(logits(params, x, Swish.apply), y)


# (params, x [batch, 64], y [batch]) -> (gradients [batch, ...], losses [batch])
sample_grads = vmap(grad_and_value(sample_loss), in_dims=(None, 0, 0))


def clipped_mean(grads: Params) -> Params:
    """The mean over samples, each sample's gradient first cut to the norm CLIP_NORM."""
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factors = (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0) / len(norms)
    return {name: torch.einsum("b,b...->...", factors, g) for name, g in grads.items()}


def train(data: Digits, epochs: int, batch_size: int, generator: torch.Generator) -> Params:
    """Adam on the clipped means of per-sample gradients."""
    params = init_params(generator)
    optimizer = torch.optim.Adam(params.values(), lr=LEARNING_RATE)
    orders = [torch.randperm(len(data.train_x), generator=generator) for _ in range(epochs)]
    batches = [batch for order in orders for batch in torch.split(order, batch_size)]
    bar = progress(iter(batches), total=len(batches))
    for batch in bar:
        grads, losses = sample_grads(params, data.train_x[batch], data.train_y[batch])
        for name, g in clipped_mean(grads).items():
            params[name].grad = g
        optimizer.step()
        bar.set_postfix(loss=f"{losses.mean().item():.3f}", refresh=False)
    return params


def looped_grads(params: Params, x: Tensor, y: Tensor) -> Params:
    """The same per-sample gradients by plain autograd, sample by sample, with torch's own SiLU."""
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    rows = [
        torch.autograd.grad(
            functional.cross_entropy(logits(leaves, xi, functional.silu), yi), list(leaves.values())
        )
        for xi, yi in zip(x, y, strict=True)
    ]
    return {name: torch.stack(gs) for name, gs in zip(leaves, zip(*rows, strict=True), strict=True)}


def compare(params: Params, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The largest gradient entry of the loop, and the largest distance of ours from it."""
    ours, _ = sample_grads(params, x, y)
    loop = looped_grads(params, x, y)
    largest = max(g.abs().max().item() for g in loop.values())
    return largest, max((ours[name] - loop[name]).abs().max().item() for name in loop)


def accuracy(params: Params, x: Tensor, y: Tensor) -> float:
    """The share of samples whose highest score is the label's."""
    return (logits(params, x, Swish.apply).argmax(-1) == y).double().mean().item()


def run(epochs: int, batch_size: int, seed: int) -> Result:
    """Load, train, and measure.

    Raises:
        MissingExtraError: scikit-learn or tqdm is not installed.
    """
    generator = torch.Generator().manual_seed(seed)
    data = load_digits(generator)
    params = train(data, epochs, batch_size, generator)
    largest, difference = compare(
        params, data.test_x[:COMPARED_SAMPLES], data.test_y[:COMPARED_SAMPLES]
    )
    return Result(
        accuracy(params, data.train_x, data.train_y),
        accuracy(params, data.test_x, data.test_y),
        largest,
        difference,
    )
