"""``vjp``: the output of a function and its pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten, leaf_paths, show
from fxforms.errors import ArgumentError, OutputError, StructureError, describe, name_of, translate
from fxforms.interpreters import grad_level
from fxforms.transforms._arguments import (
    Argnums,
    Leaves,
    is_differentiable,
    split_aux,
    unwrap_all,
)
from fxforms.transforms._backward import backward, check_saved_hooks
from fxforms.transforms._wrapper import eager


class Pullback:
    """The linear map from cotangents of the output to gradients of the primals.

    It may be called any number of times, under any other transform.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        outputs: list[torch.Tensor],
        spec: PyTreeSpec,
        leaves: Leaves,
        api: str,
    ) -> None:
        self._func = func
        self._outputs = outputs
        self._spec = spec
        self.leaves = leaves
        self._api = api

    def __call__(
        self, cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None
    ) -> Any:
        """Gradients at ``cotangents``, a pytree like the output; as a tuple, one a primal.

        Args:
            cotangents: the structure, shapes and dtypes of the output.
            retain_graph: keep the graph for another call.
            create_graph: make the result differentiable; default: if grad mode is on.

        Raises:
            StructureError: ``cotangents`` is not like the output.
            ArgumentError: cotangents are given one by one.
        """
        if not isinstance(retain_graph, int) or not isinstance(create_graph, (int, type(None))):
            raise ArgumentError(
                f"{self._api}({name_of(self._func)}): the pullback takes one pytree of cotangents, "
                f"in the structure of the output, {show(self._spec)}. Write pullback((a, b)) for "
                f"the output (x, y)."
            )
        flat, spec = flatten(cotangents)
        if spec is not self._spec and spec != self._spec:
            raise StructureError(
                f"{self._api}({name_of(self._func)}): the cotangents must have the structure of "
                f"the output, {show(self._spec)}, got {show(spec)}."
            )
        for index, (cotangent, output) in enumerate(zip(flat, self._outputs)):
            self._check(cotangent, output, index, cotangents)
        if create_graph is None:
            create_graph = torch.is_grad_enabled()
        return self.leaves.rebuild(self.flat(flat, retain_graph, create_graph))

    def flat(
        self, cotangents: list[torch.Tensor], retain_graph: bool, create_graph: bool
    ) -> list[torch.Tensor]:
        """One gradient for each tensor among the primals, at one cotangent for each output."""
        try:
            return backward(
                self._outputs, cotangents, self.leaves.tensors, retain_graph, create_graph
            )
        except RuntimeError as error:
            translate(error, f"{self._api}({name_of(self._func)})")
            raise

    def _check(self, cotangent: Any, output: torch.Tensor, index: int, tree: Any) -> None:
        """Raise StructureError unless ``cotangent`` has the shape of ``output``."""
        if isinstance(cotangent, torch.Tensor) and cotangent.shape == output.shape:
            return
        raise StructureError(
            f"{self._api}({name_of(self._func)}): {leaf_paths(tree, 'cotangents')[index]} is "
            f"{describe(cotangent)}, but the output there is {describe(output)}. They must have "
            f"one shape."
        )


def check_outputs(flat: list[Any], tree: Any, api: str, func: Callable[..., Any]) -> None:
    """Raise OutputError unless ``flat`` holds floating or complex tensors, at least one."""
    if not flat:
        raise OutputError(f"{api}({name_of(func)}): the function returned no tensor: {tree!r}.")
    advice = "Return other values through has_aux=True."
    if api == "linearize":  # has no has_aux
        advice = "Leave other values out of what it returns."
    for index, leaf in enumerate(flat):
        if not (isinstance(leaf, torch.Tensor) and is_differentiable(leaf)):
            raise OutputError(
                f"{api}({name_of(func)}): {leaf_paths(tree, 'output')[index]} is {describe(leaf)}, "
                f"but every output must be a floating or complex tensor. {advice}"
            )


def pull(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    argnums: Argnums | None,
    has_aux: bool,
    api: str,
) -> tuple[Any, Pullback, Any]:
    """``(output, pullback, aux)``; ``argnums`` None differentiates all primals."""
    if not primals:
        raise ArgumentError(f"{api}({name_of(func)}): no primals to differentiate.")
    try:
        with grad_level() as level:
            leaves = Leaves(primals, argnums, level, api, func)
            output, aux = split_aux(func(*leaves.args), has_aux, api, func)
            flat, spec = flatten(output)
            check_outputs(flat, output, api, func)
            flat = [substrate.unwrap_if_dead(x) for x in flat]
            values = [substrate.unwrap_for_grad(x, level) for x in flat]
            check_saved_hooks(values)
            if has_aux:
                aux = unwrap_all(aux, level)
    except RuntimeError as error:
        translate(error, f"{api}({name_of(func)})")
        raise
    return spec.unflatten(values), Pullback(func, flat, spec, leaves, api), aux


@eager
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The output of ``func`` and its vector-Jacobian product.

    Args:
        func: returns a pytree of floating or complex tensors, or with ``has_aux`` the pair
            ``(output, aux)``.
        *primals: pytrees of floating or complex tensors, at which ``func`` is evaluated; the
            pullback is with respect to all of them.
        has_aux: ``func`` returns auxiliary data beside its output.

    Returns:
        ``(output, vjp_fn)``, with ``has_aux`` ``(output, vjp_fn, aux)``. ``vjp_fn(cotangents)``
        takes a pytree like the output and returns a tuple with one gradient for each primal,
        like that primal. It may be called many times and under other transforms.

    Raises:
        ArgumentError: a primal is not a floating or complex tensor.
        OutputError: an output is not a floating or complex tensor.

    Example:
        >>> import torch, fxforms
        >>> out, vjp_fn = fxforms.vjp(lambda x, y: x * y, torch.tensor(2.0), torch.tensor(3.0))
        >>> out
        tensor(6.)
        >>> vjp_fn(torch.tensor(1.0))
        (tensor(3.), tensor(2.))
    """
    output, pullback, aux = pull(func, primals, None, has_aux, "vjp")
    return (output, pullback, aux) if has_aux else (output, pullback)
