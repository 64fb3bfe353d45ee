"""What holds for the whole test run."""

import torch

# Tensors are tiny here, and several workers share the cores: threads would wait for each other.
torch.set_num_threads(1)
