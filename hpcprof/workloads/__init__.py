"""Workloads: the programs that run on the ranks, and helpers that a program may import."""
