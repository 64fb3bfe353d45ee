"""Gradients where the arithmetic takes the time: of one large sum, and one a sample."""

from collections.abc import Callable
from typing import Any

from benchmarks.eager.sides import tiny
from benchmarks.staged import models
from benchmarks.staged.peers import Build, sides
from benchmarks.staged.tiny import grad
from benchmarks.workload import BEST, Workload

FAMILY = "arithmetic"
BOUNDS = {BEST: 1.0}
CLASSES = 10


def per_sample(network: Callable[..., Any]) -> Build:
    """The gradient of each sample's loss by the parameters of a network."""

    def build(api: Any, xp: Any) -> Callable[..., Any]:
        def loss(parameters: Any, x: Any, label: Any) -> Any:
            return models.cross_entropy(xp, network(xp, parameters, x), label)

        return api.vmap(api.grad(loss), (None, 0, 0))

    return build


def mlp_workload(batch: int) -> Workload:
    """Per-sample gradients of a perceptron with about 100,000 parameters."""
    parameters = models.dense(784, 128, CLASSES)
    arguments = [parameters, models.data(batch, 784), models.labels(batch, CLASSES)]
    name = f"per-sample gradients, MLP, batch {batch}"
    return Workload(FAMILY, name, sides(per_sample(models.mlp), arguments), BOUNDS)


def cnn_workload(batch: int) -> Workload:
    """Per-sample gradients of a small convolutional network."""
    images = models.data(batch, 1, 28, 28)
    arguments = [models.convolutions(), images, models.labels(batch, CLASSES)]
    name = f"per-sample gradients, CNN, batch {batch}"
    return Workload(FAMILY, name, sides(per_sample(models.cnn), arguments), BOUNDS)


def workloads() -> list[Workload]:
    """The large gradient, then the batches."""
    large = Workload(FAMILY, "grad, n=100,000", sides(grad, [tiny(100_000)]), BOUNDS)
    return [large, mlp_workload(64), mlp_workload(256), cnn_workload(256)]
