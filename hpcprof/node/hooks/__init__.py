"""Hooks in user programs: the start of Python, and the recorders of PyTorch and JAX."""
