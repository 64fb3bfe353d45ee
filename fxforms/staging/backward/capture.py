"""``capture_backward``: an existing autograd graph as a program that can be run on its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxforms import _substrate as substrate
from fxforms._tree import PyTreeSpec, flatten, show
from fxforms.errors import ArgumentError, MutationError, StructureError, UnsupportedError, describe
from fxforms.staging.backward.build import Builder
from fxforms.staging.backward.partition import compile_parts
from fxforms.staging.backward.plain import run_plain
from fxforms.staging.backward.recorder import capturing
from fxforms.staging.backward.steps import Program
from fxforms.staging.compiler import compile_module


class CapturedBackward:
    """A backward pass as a pure function of cotangents and saved values.

    Made by :func:`fxforms.capture_backward`.

    Attributes:
        graph_module: the graph, a ``torch.fx.GraphModule``. It takes the cotangents, then the
            saved values, and returns one gradient for each input.
        saved: the saved values at the time of the capture, a tuple of tensors. A tensor that the
            forward pass computed is still attached to its graph.
        inputs: what the gradients are of: ``inputs`` as given, else a list of the leaves.

    Example:
        >>> import torch, fxforms
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> backward = fxforms.capture_backward(x.exp(), x)
        >>> print(backward.graph_module.code.strip())
        def forward(self, grad_0, saved_0):
            mul = torch.ops.aten.mul.Tensor(grad_0, saved_0);  grad_0 = saved_0 = None
            return (mul,)
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        outputs: tuple[list[torch.Tensor], PyTreeSpec],
        inputs: tuple[list[torch.Tensor], PyTreeSpec],
        saved: Sequence[torch.Tensor],
    ) -> None:
        self.graph_module = graph_module
        self.saved = tuple(saved)
        self.inputs: Any = inputs[1].unflatten(inputs[0])
        self._run: Callable[..., Any] = graph_module
        self._structure = outputs[1], inputs[1]
        self._likes = [x.new_empty(()).expand(x.shape) for x in outputs[0]]
        self._versions = substrate.versions(self.saved)

    def __call__(self, cotangents: Any = None, saved: Sequence[torch.Tensor] | None = None) -> Any:
        """The gradients of the inputs.

        Args:
            cotangents: one for each output, in the structure of ``outputs``. May be left out if
                each output has a single element.
            saved: values in place of :attr:`saved`, in its order and of the same shapes.

        Returns:
            A gradient for each input, in the structure of ``inputs``; None where no output depends
            on it.

        Raises:
            StructureError: ``cotangents`` or ``saved`` do not match in structure or shape.
            MutationError: a saved value was changed in place after the capture.
        """
        if saved is None:
            saved = self.saved
            if substrate.versions(self.saved) != self._versions:
                raise MutationError(
                    "capture_backward: a saved value was changed in place after the capture. Give "
                    "the values to use as the second argument, or capture again."
                )
        gradients = self._run(*self._given(cotangents), *self._restored(saved))
        return self._structure[1].unflatten(gradients)

    def __str__(self) -> str:
        """The graph as Python source."""
        return str(self.graph_module.code).strip()

    def compile(
        self,
        compiler: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]] | None = None,
    ) -> CapturedBackward:
        """The same function with its torch operators compiled.

        Functions and hooks stay calls between the compiled parts. The result is not differentiable.

        Args:
            compiler: ``compiler(graph_module, example_inputs)`` returns a callable; Inductor if
                None.

        Returns:
            Another :class:`CapturedBackward`.
        """
        compiled = copy.copy(self)
        compiled._run = compile_parts(self.graph_module, compiler or compile_module)
        return compiled

    def _given(self, cotangents: Any) -> list[torch.Tensor]:
        """``cotangents`` as a flat list, laid out as the graph was traced for."""
        if cotangents is None:
            if any(like.numel() != 1 for like in self._likes):
                shapes = [tuple(like.shape) for like in self._likes]
                raise StructureError(
                    f"The captured backward needs a cotangent for outputs of shapes {shapes}; it "
                    f"can be left out only if each has a single element."
                )
            return [torch.ones_like(like) for like in self._likes]
        flat, spec = flatten(cotangents)
        if spec != self._structure[0]:
            raise StructureError(
                f"The captured backward takes cotangents in the structure of the outputs, "
                f"{show(self._structure[0])}, got {show(spec)}."
            )
        for index, (x, like) in enumerate(zip(flat, self._likes)):
            if not isinstance(x, torch.Tensor) or x.shape != like.shape or x.dtype != like.dtype:
                raise StructureError(
                    f"The captured backward: cotangent {index} must be {describe(like)}, as the "
                    f"output is, got {describe(x)}."
                )
        return [x.contiguous() for x in flat]

    def _restored(self, saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """``saved``, each laid out as it was at the capture."""
        if saved is self.saved:
            return list(saved)
        if isinstance(saved, torch.Tensor):
            raise StructureError(
                f"The captured backward takes one pytree of cotangents, then the sequence of its "
                f"{len(self.saved)} saved values; got {describe(saved)} in place of that."
            )
        if len(saved) != len(self.saved):
            raise StructureError(
                f"The captured backward takes {len(self.saved)} saved values, got {len(saved)}."
            )
        for index, (x, own) in enumerate(zip(saved, self.saved)):
            if x.shape != own.shape or x.dtype != own.dtype:
                raise StructureError(
                    f"The captured backward: saved value {index} must be {describe(own)}, got "
                    f"{describe(x)}."
                )
        return [
            x if x.stride() == own.stride() else relaid(x, own) for x, own in zip(saved, self.saved)
        ]


def relaid(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``tensor`` in the memory layout of ``like``."""
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    back = [order.index(dim) for dim in range(like.dim())]
    return tensor.permute(order).contiguous().permute(back)


def capture_backward(outputs: Any, inputs: Any = None) -> CapturedBackward:
    """The backward pass of ``outputs`` as a program of its own, without running it.

    Built-in nodes become their ATen operators. The backward of each Function is a node of its own,
    and so is each hook: of tensors, of nodes, and after AccumulateGrad. They run the user's code
    at every call. The graph of ``outputs`` is left as it is and can be used again.

    Args:
        outputs: a tensor with a history, or a pytree of such.
        inputs: a tensor or a pytree of tensors that the gradients are taken of, as in
            ``torch.autograd.grad``. If None, each leaf gets a gradient, as in ``.backward()``:
            what the call returns is its new ``.grad``, the present one added; nothing is stored.

    Returns:
        A :class:`CapturedBackward`, a function of cotangents and saved values.

    Raises:
        ArgumentError: an output or an input does not require grad.
        UnsupportedError: called inside a transform, or on a graph with hooks written in C++.

    Example:
        >>> import torch, fxforms
        >>> x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> backward = fxforms.capture_backward(x**3, x)
        >>> g = backward(torch.ones(3))
        >>> g
        tensor([ 3., 12., 27.], grad_fn=<MulBackward0>)
        >>> torch.autograd.grad(g.sum(), x)  # the second derivative
        (tensor([ 6., 12., 18.]),)
        >>> with torch.no_grad():  # the Jacobian
        ...     fxforms.vmap(backward)(torch.eye(3))
        tensor([[ 3.,  0.,  0.],
                [ 0., 12.,  0.],
                [ 0.,  0., 27.]])
    """
    if substrate.transforms_active():
        raise UnsupportedError(
            "capture_backward was called inside a transform, whose graph ends with it. Capture "
            "outside, and apply transforms to the captured function."
        )
    flat, spec = flatten(outputs)
    check_tensors(flat, "outputs")
    wanted, wanted_spec = flatten(inputs)
    if inputs is not None:
        check_tensors(wanted, "inputs")
    cotangents = [torch.zeros_like(x) for x in flat]
    program, values = recorded(flat, cotangents, None if inputs is None else wanted)
    builder = Builder(program, values, cotangents, flat)
    graph_module = builder.build()
    if inputs is None:
        wanted, wanted_spec = flatten([leaf for leaf, _ in builder.grads.values()])
    return CapturedBackward(graph_module, (flat, spec), (wanted, wanted_spec), builder.saved)


def check_tensors(values: Sequence[Any], argument: str) -> None:
    """Raise ArgumentError unless each of ``values`` is a tensor that requires grad."""
    for index, x in enumerate(values):
        if not (isinstance(x, torch.Tensor) and x.requires_grad):
            lacks = ", which does not require grad" if isinstance(x, torch.Tensor) else ""
            raise ArgumentError(
                f"capture_backward({argument}=...): expected tensors that require grad, got "
                f"{describe(x)}{lacks}, at leaf {index}."
            )


def recorded(
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor] | None,
) -> tuple[Program, list[Any]]:
    """The program of a backward pass and its values; nothing of it runs."""
    found: list[tuple[Program, list[Any]]] = []

    def keep(program: Program, values: list[Any]) -> list[None]:
        found.append((program, values))
        return [None] * len(program.outputs)

    with torch.enable_grad(), capturing(keep, run_plain):
        if inputs is None:
            torch.autograd.backward(outputs, cotangents, retain_graph=True)
        else:
            torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True, allow_unused=True)
    return found[0]
