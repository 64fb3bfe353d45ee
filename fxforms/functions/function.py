"""``Function``: a user's operation with rules of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from fxforms._substrate import FunctionMeta
from fxforms.functions.call import enter
from fxforms.functions.declared import describe
from fxforms.functions.rules import FunctionRules

RULE_NAMES = frozenset(
    {
        "forward",
        "setup_context",
        "backward",
        "vjp",
        "jvp",
        "vmap",
        "generate_vmap_rule",
        "vmap_method",
    }
)


class FunctionType(FunctionMeta):
    """Resolves the rules of a Function when its class is made."""

    def __init__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> None:
        super().__init__(name, bases, attributes)  # type: ignore[no-untyped-call]
        FunctionRules(cls)

    def __setattr__(cls, name: str, value: Any) -> None:
        """Set an attribute; a rule that is replaced after the class was made counts at once."""
        super().__setattr__(name, value)
        if name in RULE_NAMES:
            FunctionRules(cls)


class Function(torch.autograd.Function, metaclass=FunctionType):
    """Base class of custom operations; its API is that of ``torch.autograd.Function``.

    Define static methods and call ``apply``; keywords and defaults bind by ``forward``'s signature,
    and arguments and outputs may be pytrees.

    - ``forward(*args)``: the value, written without regard to any transform; with
      ``setup_context(ctx, inputs, output)``, which saves on ``ctx`` what the rules need. Or both in
      one as ``forward(ctx, *args)``.
    - ``backward(ctx, *cotangents)`` or ``vjp``: one gradient for each input, None for an input
      without one; each has the shape of its input.
    - ``jvp(ctx, *tangents)``: one tangent for each output.
    - ``vmap(info, in_dims, *args)``: ``(output, out_dims)`` for the whole batch; ``info`` is a
      :class:`fxforms.VmapInfo`.

    A rule that is left out is derived: ``backward`` and ``jvp`` from each other, ``vmap`` by
    mapping the other methods, or by a loop over the samples where one cannot be mapped.
    ``vmap_method`` says how: ``"derive"`` (the default), ``"loop"``, or ``"error"``. :meth:`rules`
    tells what is derived.

    ``ctx`` offers ``save_for_backward``, ``save_for_forward``, ``saved_tensors``, ``mark_dirty``,
    ``mark_non_differentiable``, ``set_materialize_grads``, ``needs_input_grad`` and attributes.

    With no transform active ``apply`` is an ordinary autograd Function, and a node of its graph is
    named after the class.

    Raises:
        RuleError: at class creation, if the rules contradict each other; at a call, if a transform
            needs a rule that is not there.
        GradientError: a rule returned the wrong number or shape of derivatives.

    Example:
        >>> import torch, fxforms
        >>> class Cube(fxforms.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return x**3
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.save_for_backward(*inputs)
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return 3 * x**2 * g
        >>> x = torch.tensor([1.0, 2.0])
        >>> fxforms.vmap(fxforms.grad(Cube.apply))(x)
        tensor([ 3., 12.])
    """

    _rules: ClassVar[FunctionRules]

    @classmethod
    def rules(cls) -> dict[str, str]:
        """For each rule whether it is given, derived and from what, or absent and why.

        Returns:
            A dict with the keys ``"backward"``, ``"jvp"`` and ``"vmap"``.

        Example:
            >>> import fxforms
            >>> class Double(fxforms.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         return 2 * x
            ...     @staticmethod
            ...     def backward(ctx, g):
            ...         return 2 * g
            >>> Double.rules()["jvp"]
            'derived: backward transposed'
        """
        return describe(cls._rules)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the Function at the current level; see the class."""
        rules = cls._rules
        if kwargs or len(args) != rules.arity:
            args = rules.signature.bind(args, kwargs)
        return enter(rules, args)
