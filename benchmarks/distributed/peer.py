"""The other process: serves until the first leaves."""

import json
import sys

from benchmarks import machine
from benchmarks.distributed import functions as functions  # registers them
from benchmarks.distributed.world import join, part

if __name__ == "__main__":
    machine.keep_freed_memory()
    join(1, *json.loads(sys.argv[1]))
    part()
