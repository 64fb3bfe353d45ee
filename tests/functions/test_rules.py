"""What ``Function.rules`` tells."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import fxforms


def test_rules_tell_what_is_derived() -> None:
    class Given(fxforms.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return t

    class Bare(fxforms.Function):
        vmap_method = "error"

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

    assert Given.rules() == {
        "backward": "derived: jvp transposed",
        "jvp": "given",
        "vmap": "derived: forward and the other rules mapped over the batch",
    }
    assert Bare.rules() == {
        "backward": "absent: neither backward nor jvp is given",
        "jvp": "absent: neither backward nor jvp is given",
        "vmap": 'absent: vmap_method = "error"',
    }
