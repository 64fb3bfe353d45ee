"""A million elements: the ops take the time, and what a transform adds must not show.

The Hessian is that of each of 200,000 rows of five, as one of a million elements has no room.
"""

from collections.abc import Mapping

from benchmarks.eager import custom_functions, transforms
from benchmarks.eager.sides import APIS, TORCH_FUNC, TensorFunction, tiny
from benchmarks.timing import Side
from benchmarks.workload import Workload

BOUNDS = {TORCH_FUNC: 1.02}


def workloads() -> list[Workload]:
    """Every transform, on plain ops and on each custom Function."""
    plain: dict[str, TensorFunction] = dict.fromkeys(APIS, transforms.x_sin_x)
    families = {"plain ops": plain}
    for family, make in custom_functions.FAMILIES.items():
        families[family] = custom_functions.functions(make)
    return [
        Workload(f"1,000,000 elements, {family}", name, sides(name, functions), BOUNDS)
        for family, functions in families.items()
        for name in transforms.BUILDERS
    ]


def sides(name: str, functions: Mapping[str, TensorFunction]) -> dict[str, Side]:
    """fxforms and torch.func on a million elements."""
    build = transforms.vmap_hessian if name == "hessian" else transforms.BUILDERS[name]
    x = tiny(200_000, 5) if name == "hessian" else tiny(1_000, 1_000)
    return {label: build(api, functions[label], x) for label, api in APIS.items()}
