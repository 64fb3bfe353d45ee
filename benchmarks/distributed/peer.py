"""The other process: serves until the first leaves."""

import sys

import torch.distributed.rpc as torch_rpc

from benchmarks import machine
from benchmarks.distributed import functions as functions  # registers them
from benchmarks.distributed.world import join_torch

if __name__ == "__main__":
    machine.keep_freed_memory()
    join_torch(1, int(sys.argv[1]))
    torch_rpc.shutdown()
