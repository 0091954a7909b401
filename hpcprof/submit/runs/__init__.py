"""Runs: the directory of one submission, and why a run failed."""
