"""Hooks in user programs: the start of Python, and the recorders of PyTorch and JAX."""

PACKAGE = "hpcprof_hooks"
"""The name of this package in the folder of a run, where an installed hpcprof must not hide it."""
