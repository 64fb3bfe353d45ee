"""A model whose three stages live in three processes, trained; and the Hessian of a remote loss.

    python examples/pipeline.py

starts the processes, trains a classifier of digits, and prints how far its parameters are from
those of the same model trained in one process. It needs the extras ``rpc`` and ``demo``.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from sklearn import datasets
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

import fxforms
from fxforms import distributed

WORKERS = ("driver", "middle", "last")
SIZES = ((64, 48), (48, 32), (32, 10))
MICRO_BATCHES = 4
LEARNING_RATE = 0.5


@distributed.register
class Stage:
    """One layer of the model, on whichever worker it was made."""

    def __init__(self, number: int) -> None:
        inputs, outputs = SIZES[number]
        generator = torch.Generator().manual_seed(number)
        weight = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
        self.parameters = [
            (weight / inputs**0.5).requires_grad_(),
            torch.zeros(outputs, dtype=torch.float64, requires_grad=True),
        ]
        self.last = number == len(SIZES) - 1

    def run(self, x: Tensor) -> Tensor:
        """The layer: ``[n, inputs] -> [n, outputs]``."""
        y = functional.linear(x, *self.parameters)
        return y if self.last else torch.tanh(y)

    def forward(self, x: Any) -> Tensor:
        """The layer on the value of an RRef, which comes straight from the worker that has it."""
        return self.run(x.to_here())

    def references(self) -> list[Any]:
        """RRefs of the parameters, for the optimiser."""
        return [distributed.RRef(parameter) for parameter in self.parameters]

    def values(self) -> list[Tensor]:
        """The parameters as they are now."""
        return [parameter.detach() for parameter in self.parameters]


def digits() -> tuple[Tensor, Tensor]:
    """Images ``[n, 64]`` in [0, 1] and labels ``[n]``."""
    images, labels = datasets.load_digits(return_X_y=True)
    return torch.as_tensor(images, dtype=torch.float64) / 16, torch.as_tensor(labels)


def batches(count: int, size: int, epochs: int) -> list[Tensor]:
    """The samples of each step."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(count, generator=generator) for _ in range(epochs)]
    return [batch for order in orders for batch in order.split(size)]


def progress(steps: Sequence[Any], what: str) -> Iterator[Any]:
    """The steps, with a bar on standard error."""
    yield from tqdm(steps, desc=what, unit="step")


def train_pipeline(x: Tensor, y: Tensor, steps: Sequence[Tensor]) -> list[Tensor]:
    """Train with a stage on each worker; micro-batches are under way at the same time."""
    stages = [distributed.remote(name, Stage, (i,)) for i, name in enumerate(WORKERS)]
    parameters = [p for stage in stages for p in stage.rpc_sync().references()]
    optimizer = distributed.DistributedOptimizer(torch.optim.SGD, parameters, lr=LEARNING_RATE)
    for batch in progress(steps, "three processes"):
        with distributed.context() as context_id:
            outputs = []
            for micro in batch.chunk(MICRO_BATCHES):
                value = distributed.RRef(x[micro])
                for stage in stages:
                    value = stage.remote().forward(value)
                outputs.append(value)
            scores = torch.cat([value.to_here() for value in outputs])
            distributed.backward(context_id, [functional.cross_entropy(scores, y[batch])])
            optimizer.step(context_id)
    return [value for stage in stages for value in stage.rpc_sync().values()]


def train_here(x: Tensor, y: Tensor, steps: Sequence[Tensor]) -> list[Tensor]:
    """The same in one process."""
    stages = [Stage(i) for i in range(len(SIZES))]
    parameters = [p for stage in stages for p in stage.parameters]
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    for batch in progress(steps, "one process"):
        scores = x[batch]
        for stage in stages:
            scores = stage.run(scores)
        optimizer.zero_grad()
        functional.cross_entropy(scores, y[batch]).backward()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def accuracy(parameters: Sequence[Tensor], x: Tensor, y: Tensor) -> float:
    """The share of samples whose highest score is the label's."""
    for weight, bias in zip(parameters[::2], parameters[1::2]):
        x = functional.linear(torch.tanh(x) if weight is not parameters[0] else x, weight, bias)
    return (x.argmax(1) == y).double().mean().item()


@distributed.register
def fit(w: Tensor) -> Tensor:
    """One part of a loss."""
    points = torch.linspace(-1, 1, 50, dtype=torch.float64)
    model = w[0] * torch.sin(w[1] * points) + w[2]
    return ((model - torch.exp(points)) ** 2).mean()


@distributed.register
def penalty(w: Tensor) -> Tensor:
    """Another part."""
    return 0.1 * (w**4).sum()


def hessian_of_two_workers() -> float:
    """The largest error of the Hessian of a loss whose parts live on two workers."""
    w = torch.tensor([1.0, 0.5, -0.3], dtype=torch.float64)
    far_fit = distributed.remote_function("middle", fit)
    far_penalty = distributed.remote_function("last", penalty)
    found = fxforms.hessian(lambda w: far_fit(w) + far_penalty(w))(w)
    expected = torch.autograd.functional.hessian(lambda w: fit(w) + penalty(w), w)
    return (found - expected).abs().max().item()


def work(rank: int, port: int, epochs: int) -> None:
    """One process; the first drives, the others serve."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_rpc(WORKERS[rank], rank=rank, world_size=len(WORKERS))
    if rank == 0:
        x, y = digits()
        steps = batches(len(x), 128, epochs)
        apart, together = train_pipeline(x, y, steps), train_here(x, y, steps)
        difference = max((p - q).abs().max().item() for p, q in zip(apart, together))
        print(f"accuracy on the training data       {accuracy(apart, x, y):.2%}")
        print(f"largest difference from one process {difference:.1e}")
        print(f"largest error of the Hessian        {hessian_of_two_workers():.1e}")
    distributed.shutdown()


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data")
    epochs = parser.parse_args().epochs
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    multiprocessing.spawn(work, nprocs=len(WORKERS), args=(port, epochs))


if __name__ == "__main__":
    main()
