"""A worker that is a process of its own: serves until worker 0 shuts the world down."""

from __future__ import annotations

import json
import sys

import torch
from distributed import autograd_functions as autograd_functions  # registers them
from distributed import remote_functions as remote_functions

from fxforms import distributed as fd


def main() -> None:
    torch.set_num_threads(1)
    name, rank, size, agent, options = json.loads(sys.argv[1])
    fd.init_rpc(name, rank=rank, world_size=size, agent=agent, options=options)
    fd.shutdown()


if __name__ == "__main__":
    main()
