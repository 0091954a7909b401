"""Hooks in user programs: the start of Python, and the recorders of PyTorch and JAX."""

PACKAGE = "hpcprof_hooks"
"""The name of this package in a run, where it must not be taken for a part of hpcprof."""
