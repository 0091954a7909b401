"""The workload ``ddp``: data-parallel training with PyTorch."""
