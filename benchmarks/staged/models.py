"""Networks written once for torch and for jax.numpy, and their parameters and data.

`xp` is the module with the arithmetic. Parameters are a list of pairs (weight, bias).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.staged.peers import jax

Parameters = list[tuple[Tensor, Tensor]]


def dense(*widths: int) -> Parameters:
    """The parameters of a multilayer perceptron, the same in every run."""
    random = torch.Generator().manual_seed(0)
    return [
        (torch.randn(fan_in, fan_out, generator=random) / fan_in**0.5, torch.zeros(fan_out))
        for fan_in, fan_out in itertools.pairwise(widths)
    ]


def data(*shape: int) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def labels(count: int, classes: int) -> Tensor:
    """A class a sample, as a one-hot row."""
    return torch.eye(classes)[torch.arange(count) % classes]


def mlp(xp: Any, parameters: Sequence[Any], x: Any) -> Any:
    """tanh between the layers, none after the last."""
    *hidden, (weight, bias) = parameters
    for inner_weight, inner_bias in hidden:
        x = xp.tanh(x @ inner_weight + inner_bias)
    return x @ weight + bias


def convolutions() -> Parameters:
    """The parameters of `cnn`: two convolutions of 3 by 3, then ten classes of 28 by 28 images."""
    random = torch.Generator().manual_seed(0)
    shapes = [(8, 1, 3, 3), (16, 8, 3, 3), (16 * 7 * 7, 10)]
    sizes = [8, 16, 10]
    fans = [9, 72, 16 * 7 * 7]
    return [
        (torch.randn(shape, generator=random) / fan**0.5, torch.zeros(size))
        for shape, size, fan in zip(shapes, sizes, fans)
    ]


def cnn(xp: Any, parameters: Sequence[Any], image: Any) -> Any:
    """The ten scores of one image [1, 28, 28]; a stride of two takes the place of pooling."""
    *kernels, (weight, bias) = parameters
    x = image[None]
    for kernel, offset in kernels:
        x = xp.tanh(convolve(xp, x, kernel) + offset[:, None, None])
    return x.reshape(-1) @ weight + bias


def convolve(xp: Any, x: Any, kernel: Any) -> Any:
    """A convolution of stride two, padded by one."""
    if xp is torch:
        return torch.nn.functional.conv2d(x, kernel, stride=2, padding=1)
    assert jax
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), ((1, 1), (1, 1)))


def cross_entropy(xp: Any, scores: Any, label: Any) -> Any:
    """The loss of one sample; `label` is a one-hot row."""
    shifted = scores - scores.max()
    return xp.log(xp.exp(shifted).sum()) - (shifted * label).sum()
